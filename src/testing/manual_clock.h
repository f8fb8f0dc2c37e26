#pragma once

// ManualClock: time that moves only when a test says so. Threads: thread-safe.

#include <atomic>

#include "base/clock.h"

namespace moonpool::testing {

class ManualClock final : public Clock {
 public:
  // Does not start at zero, so that a forgotten Time{} is in the past.
  explicit ManualClock(Time start = Time(std::chrono::hours(1)))
      : nanos_(start.time_since_epoch().count()) {}

  Time Now() const override {
    return Time(Duration(nanos_.load(std::memory_order_acquire)));  // pairs with Advance, AdvanceTo
  }
  void Advance(Duration by) { nanos_.fetch_add(by.count(), std::memory_order_acq_rel); }
  // Never goes back: an earlier time is ignored.
  void AdvanceTo(Time to) {
    const int64_t want = to.time_since_epoch().count();
    int64_t have = nanos_.load(std::memory_order_acquire);
    while (have < want && !nanos_.compare_exchange_weak(have, want, std::memory_order_acq_rel)) {
    }
  }

 private:
  std::atomic<int64_t> nanos_;
};

}  // namespace moonpool::testing
