#include "base/clock.h"

#include <time.h>

#include <algorithm>

namespace moonpool {

Time BootClock::now() {
  timespec ts{};
  clock_gettime(CLOCK_BOOTTIME, &ts);
  return Time(std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec));
}

Time After(Time now, Duration timeout) {
  if (timeout.count() > 0 &&
      now.time_since_epoch().count() > Time::max().time_since_epoch().count() - timeout.count()) {
    return kNever;
  }
  return now + timeout;
}

int MillisUntil(Time now, Time deadline, int cap_ms) {
  if (deadline <= now) return 0;
  if (deadline == kNever) return cap_ms;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::min<int64_t>(ms, cap_ms));
}

}  // namespace moonpool
