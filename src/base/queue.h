#pragma once

// BoundedQueue: hands values from any threads to any threads, first in, first out, with a bound
// that the owner derives. Full is an answer (TryPush returns false), never a wait: whoever pushes
// tells its own caller kAgain.
//
// Threads: thread-safe.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace moonpool {

template <typename T>
class BoundedQueue {
 public:
  // Requires: bound > 0.
  explicit BoundedQueue(size_t bound) : bound_(bound) { MOONPOOL_CHECK(bound > 0); }

  // False when full or closed; `value` is then untouched.
  bool TryPush(T&& value) {
    MutexLock lock(mutex_);
    if (closed_ || values_.size() >= bound_) return false;
    values_.push_back(std::move(value));
    arrived_.NotifyOne();
    return true;
  }
  bool TryPush(const T& value) { return TryPush(T(value)); }

  // The oldest value; waits for one until `deadline` on `clock`. Nothing when the deadline passed,
  // or the queue is closed and empty.
  std::optional<T> Pop(Time deadline, const Clock& clock) {
    MutexLock lock(mutex_);
    while (values_.empty() && !closed_) {
      const Time now = clock.Now();
      if (now >= deadline) return std::nullopt;
      // Looked at again now and then, because the clock may be one that a test moves.
      arrived_.WaitFor(mutex_, std::min<Duration>(deadline - now, kLook));
    }
    return PopLocked();
  }

  // The oldest value if there is one.
  std::optional<T> TryPop() {
    MutexLock lock(mutex_);
    return PopLocked();
  }

  // Nothing is pushed any more, and nobody waits; what is inside can still be popped. Idempotent.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    arrived_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(mutex_);
    return values_.size();
  }
  size_t bound() const { return bound_; }

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(10);

  std::optional<T> PopLocked() MOONPOOL_REQUIRES(mutex_) {
    if (values_.empty()) return std::nullopt;
    std::optional<T> value(std::move(values_.front()));
    values_.pop_front();
    return value;
  }

  const size_t bound_;
  mutable Mutex mutex_;
  CondVar arrived_;
  std::deque<T> values_ MOONPOOL_GUARDED_BY(mutex_);
  bool closed_ MOONPOOL_GUARDED_BY(mutex_) = false;
};

}  // namespace moonpool
