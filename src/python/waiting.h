#pragma once

// Waiting as Python wants it: with the GIL released, and in slices, between which signal handlers
// run, so that Ctrl-C ends every wait within kWaitSlice. Timeouts come as seconds in a float.
// Threads: needs the GIL.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"

namespace moonpool::python {

inline constexpr Duration kWaitSlice = std::chrono::milliseconds(100);

// Seconds as a Duration; nullopt (None) or infinity: as long as it takes. Raises InvalidArgument
// naming `what` for a negative number or NaN.
Duration Seconds(const std::optional<double>& seconds, const char* what);
inline constexpr Duration kAsLongAsItTakes = std::chrono::hours(24 * 365 * 10);

// Runs Python's signal handlers; raises what they raise.
void CheckSignals();

// True on the thread that runs Python's signal handlers, if this process did not fork elsewhere.
bool OnMainThread();

// Calls `step(slice)` without the GIL until it returns true or `timeout` has passed; false then.
template <typename Step>
bool WaitInSlices(Duration timeout, const Step& step) {
  const Time deadline = After(BootClock::now(), timeout);
  while (true) {
    bool ended;
    {
      const nanobind::gil_scoped_release released;
      const Duration left = deadline - BootClock::now();
      ended = step(std::clamp(left, Duration(0), kWaitSlice));
    }
    CheckSignals();
    if (ended) return true;
    if (BootClock::now() >= deadline) return false;
  }
}

}  // namespace moonpool::python
