#pragma once

// A mutex, its scoped lock and a condition variable that clang's thread-safety analysis
// understands. One mutex per class; what it guards carries MOONPOOL_GUARDED_BY. Never hold one
// across I/O, a log line or a call to another room. Threads: thread-safe.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"
#include "base/port/annotations.h"

namespace moonpool {

class MOONPOOL_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() MOONPOOL_ACQUIRE() { mutex_.lock(); }
  void Unlock() MOONPOOL_RELEASE() { mutex_.unlock(); }
  bool TryLock() MOONPOOL_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class MOONPOOL_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MOONPOOL_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() MOONPOOL_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Requires: `mutex` is held; it is released while waiting and held again on return. Wakes may be
  // spurious.
  void Wait(Mutex& mutex) MOONPOOL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  // The same, for at most `timeout` (and an hour: the library's arithmetic overflows far above that).
  void WaitFor(Mutex& mutex, Duration timeout) MOONPOOL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cond_.wait_for(lock, std::min<Duration>(timeout, std::chrono::hours(1)));
    lock.release();
  }
  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace moonpool
