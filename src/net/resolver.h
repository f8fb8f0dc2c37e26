#pragma once

// Resolver: host names to endpoints, bounded by a deadline. The C library's look-up cannot be
// interrupted, so each runs on a helper thread (mp-resolve) and whoever asked stops waiting when
// its deadline has passed. Numeric addresses need no look-up and never block.
//
// At most kLookupsMax look-ups run at once; callers that ask for a name that is being looked up
// share that look-up. A look-up that is still stuck inside the C library a moment after the resolver
// was destroyed is abandoned: its thread owns all that it touches.
//
// Not responsible for: caching (the C library and its daemons do that).
// Threads: thread-safe. Errors: kUnavailable (no such name, name server failed), kTimedOut,
// kCancelled (Cancel was called), kExhausted (kLookupsMax look-ups are stuck).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/address.h"

namespace moonpool::net {

class Resolver {
 public:
  // Every stuck look-up holds a thread; as many as the peers that one can lose at once.
  static constexpr size_t kLookupsMax = 16;

  // What does the look-up, and may block; the port of its endpoints is ignored. Replaced in tests.
  using Lookup = std::function<Result<std::vector<Endpoint>>(const std::string& host)>;

  // `goodbye`: how long the destructor waits for look-ups, all together.
  explicit Resolver(const Clock& clock, Lookup lookup = {},
                    Duration goodbye = std::chrono::milliseconds(50));
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // One endpoint or more, in the order in which to try them.
  Result<std::vector<Endpoint>> Resolve(const HostPort& name, Time deadline);

  // Ends all calls, the present and the later ones, with kCancelled.
  void Cancel();

 private:
  struct State;
  const Clock& clock_;
  const Lookup lookup_;
  const Duration goodbye_;
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::net
