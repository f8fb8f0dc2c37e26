#pragma once

// The two ways to talk to a registry server: ours, where the server knows leases and owners, and
// Mooncake's plain one, where each entry says itself until when it is to be believed, and owners
// read before they write. Internal to the leaf.
//
// Threads: thread-safe. Ownership: the client outlives the dialect.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "http/client.h"
#include "registry/registry.h"

namespace moonpool::registry::http {

using WallClock = std::function<int64_t()>;  // Unix time in ms

// An entry as its owner knows it.
struct Held {
  std::string name{};
  std::string value{};
  OwnerToken owner = 0;
  Duration lease{};
  uint64_t version = 0;  // what Put returned
};

class Dialect {
 public:
  virtual ~Dialect() = default;
  // The version. With `if_absent`, kStale when another owner has the name.
  virtual Result<uint64_t> Put(const Held& entry, bool if_absent, Time deadline) = 0;
  virtual Result<Entry> Get(std::string_view name, Time deadline) = 0;
  // kNotFound: it is gone; kStale: another owner has the name.
  virtual Status Renew(const Held& entry, Time deadline) = 0;
  virtual Status Remove(std::string_view name, OwnerToken owner, Time deadline) = 0;
  virtual Result<std::vector<std::string>> List(std::string_view prefix, Time deadline) = 0;
};

// `base` is "http://host:port".
std::unique_ptr<Dialect> MakeLeaseDialect(moonpool::http::Client& client, const std::string& base);
// `url` is the whole "http://host:port/metadata".
std::unique_ptr<Dialect> MakePlainDialect(moonpool::http::Client& client, const std::string& url,
                                          WallClock wall);

// Ok for 200; else the status with what the server said.
Status StatusOf(const moonpool::http::Response& response);

}  // namespace moonpool::registry::http
