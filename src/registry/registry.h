#pragma once

// The registry contract: from the name of a segment to the address (host:port) of its engine, with leases. A back end is
// a leaf folder; registry/builtin.h lists the factories of those that this build has.
//
// An entry vanishes when its lease has run out and its owner has not renewed it; the back end renews by itself while it
// lives. Put under a name that exists replaces the entry: the newest owner wins, the older owner's renewals fail from
// then on, which Check tells (and the back end logs once).
//
// Not responsible for: what a value means, whether its owner answers.
//
// Threads: thread-safe. Calls block until their deadline at most. Ownership: clock and log outlive the registry.
//
// Errors: kInvalidArgument (names the field), kNotFound (no live entry), kUnavailable and kTimedOut (the registry does
// not answer), kUnsupported (this back end cannot), kStale (another owner has the name), kCancelled (Close).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace moonpool::registry {

inline constexpr size_t kNameBytesMax = 1024;
inline constexpr size_t kValueBytesMax = 64 * 1024;
inline constexpr Duration kLeaseMin = std::chrono::milliseconds(100);
inline constexpr Duration kLeaseMax = std::chrono::hours(24);

// Proves that its holder put the entry.
using OwnerToken = uint64_t;

struct Registration {
  std::string name;
  std::string value;
  Duration lease = std::chrono::seconds(10);
};

struct Entry {
  std::string value;
  uint64_t version = 0;  // grows with each Put of the name; 0 where the back end has none
};

struct Capabilities {
  bool stores = true;  // Put makes an entry that Get finds
  bool lists = true;
};

class Registry {
 public:
  virtual ~Registry() = default;
  virtual std::string_view name() const = 0;  // of the back end: "p2p", "http"
  virtual const Capabilities& capabilities() const = 0;

  // Makes or replaces the entry and keeps it alive until Remove, Close or another owner's Put.
  virtual Result<OwnerToken> Put(const Registration& registration, Time deadline) = 0;
  virtual Result<Entry> Get(std::string_view name, Time deadline) = 0;
  // Removes one's own entry; ok when it is gone already. An entry of another owner stays (kStale).
  virtual Status Remove(std::string_view name, OwnerToken token, Time deadline) = 0;
  // Names of live entries that begin with `prefix`, in order.
  virtual Result<std::vector<std::string>> List(std::string_view prefix, Time deadline) = 0;
  // How the last renewal went: ok, kStale (replaced), kUnavailable (the registry has not answered since).
  virtual Status Check(std::string_view name, OwnerToken token) const = 0;

  // Stops renewing; entries are left to their leases. Idempotent.
  virtual void Close() = 0;
};

struct Environment {
  Clock& clock;
  Logger& log;
};

struct Factory {
  std::string name;
  std::function<bool(std::string_view url)> accepts;
  std::function<Result<std::unique_ptr<Registry>>(const Environment&, const std::string& url)> create;
};

// 1 to kNameBytesMax bytes, no control characters.
Status CheckName(std::string_view name);
Status CheckRegistration(const Registration& registration);

// The first back end that accepts the URL makes the registry.
Result<std::unique_ptr<Registry>> Open(std::span<const Factory> factories, const Environment& env, const std::string& url);

}  // namespace moonpool::registry
