#pragma once

// The registry contract: names, and the value that a name's owner keeps there for as long as it
// lives. A segment's name becomes the address (host:port) of its engine. Back ends are leaves
// (registry/p2p, registry/http, ...), listed by registry/builtin.h, that keep these promises,
// checked by registry/conformance.h:
//
// 1. A value is what one Put stored, whole, or kNotFound.
// 2. An entry whose owner does not renew it vanishes once its lease has run out. The back end
//    renews its own entries (one thread, mp-lease) until Remove or Close.
// 3. Put replaces an entry that another owner left or still holds: the newest owner has the name.
//    The older owner's renewals fail from then on, its entry does not come back, and Check says
//    kStale (the back end logs it once).
// 4. Remove takes away only what its own token stored.
// 5. After Close nothing of this registry's is renewed; what it had put is removed if the server
//    answers at once, and vanishes by its lease otherwise.
//
// Not responsible for: what a value means, whether its owner answers, caching.
//
// Threads: thread-safe; calls block until their deadline at most. Ownership: clock and log outlive
// the registry.
//
// Errors: kInvalidArgument (names the field), kNotFound (no live entry), kUnavailable and kTimedOut
// (the server does not answer), kExhausted (the server's bounds), kUnsupported (this back end
// cannot, see capabilities()), kStale (another owner has the name), kCancelled (closed).
//
//   auto registry = registry::Open(factories, {clock, log}, "http://10.0.0.1:8080");
//   auto token = (*registry)->Put({"decode-7", "10.0.0.7:9000", 10s}, deadline);
//   auto entry = (*registry)->Get("prefill-3", deadline);

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
inline constexpr size_t kValueBytesMax = 1 << 20;
inline constexpr Duration kLeaseMin = std::chrono::milliseconds(100);
inline constexpr Duration kLeaseMax = std::chrono::hours(24);

// Which Put an entry came from; random, so that nobody guesses another's.
using OwnerToken = uint64_t;

struct Registration {
  std::string name;                           // 1 .. kNameBytesMax bytes, no control characters
  std::string value;                          // kValueBytesMax bytes at most
  Duration lease = std::chrono::seconds(10);  // kLeaseMin .. kLeaseMax
};

struct Entry {
  std::string value;
  uint64_t version = 0;  // grows with each Put of the name; 0 where the back end has none
};

// Which promises a back end can keep.
struct Capabilities {
  bool stores = true;  // Put makes an entry that Get finds; else it is accepted and does nothing
  bool lists = true;   // List works
  bool atomic = true;  // 3 and 4 hold also against owners that act in the same instant
};

class Registry {
 public:
  virtual ~Registry() = default;

  virtual std::string_view name() const = 0;  // of the back end: "p2p", "http"
  virtual const Capabilities& capabilities() const = 0;

  // Makes or replaces the entry, and keeps it alive. A Put of a name that this registry holds
  // already makes the earlier token stale.
  virtual Result<OwnerToken> Put(const Registration& registration, Time deadline) = 0;
  virtual Result<Entry> Get(std::string_view name, Time deadline) = 0;
  // Ends the renewals of one's own entry in any case, and removes it; ok when it is gone already.
  // An entry of another owner stays (kStale).
  virtual Status Remove(std::string_view name, OwnerToken token, Time deadline) = 0;
  // Names of live entries that begin with `prefix`, in order; 10,000 at most.
  virtual Result<std::vector<std::string>> List(std::string_view prefix, Time deadline) = 0;

  // How the renewals of a Put of this registry's fare, without asking the server: ok; kStale
  // (replaced; final); the last failure while the server does not answer (the entry may be gone; it
  // comes back when the server does); kNotFound (no such Put).
  virtual Status Check(std::string_view name, OwnerToken token) const = 0;

  // Idempotent; within 1 s.
  virtual void Close() = 0;
};

// What a back end borrows; all outlive the registry.
struct Environment {
  const Clock& clock;
  Logger& log;
};

// One per leaf, listed by the generated registry/builtin.h.
struct Factory {
  std::string name;
  // Whether a URL is for this back end, by its form alone.
  std::function<bool(std::string_view url)> accepts;
  // Does not wait for the server: it may come up later. kInvalidArgument names what is wrong.
  std::function<Result<std::unique_ptr<Registry>>(const Environment&, const std::string& url)>
      create;
};

// The registry that `url` names, from the first factory that accepts it. kInvalidArgument lists
// the back ends of this build.
Result<std::unique_ptr<Registry>> Open(std::span<const Factory> factories, const Environment& env,
                                       const std::string& url);

// What every back end requires of its arguments.
Status CheckName(std::string_view name);
Status CheckRegistration(const Registration& registration);

}  // namespace moonpool::registry
