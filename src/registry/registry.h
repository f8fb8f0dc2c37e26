#pragma once

// The registry contract: names of segments to the addresses (host:port) of their engines, with leases. A back end is a
// leaf folder; registry/builtin.h lists the factories of those that this build has.
//
// An entry vanishes when its lease has run out and its owner (the Registry object that put it) has not renewed it; the
// back end renews by itself while it lives. Put under a name that exists replaces the entry: the newest owner wins, and
// the older one's renewals fail from then on (logged once).
//
// Not responsible for: what the value means, whether its owner answers.
//
// Threads: thread-safe. Calls block until their deadline at most. Ownership: clock and log outlive it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace moonpool::registry {

inline constexpr size_t kNameBytesMax = 1024;
inline constexpr size_t kValueBytesMax = 64 * 1024;

struct Entry {
  std::string name;
  std::string value;
  uint64_t version = 0;  // grows with each Put of the name, where the back end has one
};

class Registry {
 public:
  virtual ~Registry() = default;
  virtual std::string_view back_end() const = 0;  // "p2p", "http"

  // kInvalidArgument: an empty or too long name or value. kUnavailable, kTimedOut: the registry does not answer.
  virtual Status Put(const std::string& name, const std::string& value, Duration lease, Time deadline) = 0;
  // kNotFound: no live entry.
  virtual Result<Entry> Get(const std::string& name, Time deadline) = 0;
  // Only one's own entry: an entry that another owner has replaced stays. Ok when there is none.
  virtual Status Remove(const std::string& name, Time deadline) = 0;
  // Live entries whose names begin with `prefix`, by name. kUnsupported where the back end cannot list.
  virtual Result<std::vector<Entry>> List(const std::string& prefix, Time deadline) = 0;

  // Stops renewing; entries are left to their leases. Calls under way return kCancelled. Idempotent.
  virtual void Close() = 0;
};

struct Environment {
  Clock& clock;
  Logger& log;
};

struct Factory {
  std::string name;
  // What `create` takes, for messages: "http://host:port[/path]".
  std::string form;
  std::function<bool(std::string_view url)> accepts;
  std::function<Result<std::unique_ptr<Registry>>(const Environment&, const std::string& url)> create;
};

}  // namespace moonpool::registry
