#pragma once

// Time, and who tells it. Every deadline of the project is a Time: nanoseconds on the machine's
// monotonic clock that also runs while the machine sleeps (CLOCK_BOOTTIME), so that two processes
// of one host mean the same instant by the same number, and a process that was frozen sees how long
// it was away.
//
// Rooms take a `Clock&` that outlives them; only composition roots and tests make one (SystemClock;
// ManualClock in testing/). Threads: Now() is thread-safe.

#include <chrono>
#include <cstdint>

namespace moonpool {

struct BootClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock, duration>;
  static constexpr bool is_steady = true;
  static time_point now();  // lower case: the name std::chrono's clock requirements give it
};

using Duration = BootClock::duration;
using Time = BootClock::time_point;

// Later than any deadline; "no deadline".
inline constexpr Time kNever = Time::max();

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time Now() const = 0;
};

// The machine's own clock.
class SystemClock final : public Clock {
 public:
  Time Now() const override { return BootClock::now(); }
};

// now + timeout, or kNever when that overflows.
Time After(Time now, Duration timeout);

// Whole milliseconds from now until `deadline`, rounded up, for poll(2)-like calls: 0 when passed,
// `cap_ms` at most.
int MillisUntil(Time now, Time deadline, int cap_ms);

}  // namespace moonpool
