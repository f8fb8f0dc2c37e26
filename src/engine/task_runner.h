#pragma once

// TaskRunner: the engine's slow work (finding peers, repairing segments, delivering notifications) and its timers, off the
// data path. Tasks that may block run on threads of their own (mp-resolve-N), made when none is idle, kThreadsMax at
// most: a peer that lets a task wait for its deadline does not hold up others. Quick tasks, which never block, have one
// thread (mp-timer), so timers are kept whatever peers do. Without threads, RunDue runs what is due.
//
// Threads: thread-safe. Tasks must end by themselves (their calls have deadlines); Stop waits for those that run and
// drops the others.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace moonpool::engine {

class TaskRunner {
 public:
  using Task = std::function<void()>;
  enum class Kind { kQuick, kMayBlock };
  static constexpr size_t kThreadsMax = 16;

  TaskRunner(Clock& clock, bool threads) : clock_(clock), threaded_(threads) {}
  ~TaskRunner() { Stop(); }
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;

  // Runs `task` at `when` or soon after; at once when that has passed. Dropped after Stop.
  void Post(Kind kind, Task task, Time when = Time{});
  // Without threads: runs the tasks that are due; true if there was one.
  bool RunDue();
  void Stop();

 private:
  struct Pool {
    std::string name;
    size_t threads_max = 1;
    CondVar changed;
    // The bound is the callers': a repair and a probe per segment, an expiry per waiting group, one per batch with a
    // notification.
    std::multimap<Time, Task> tasks;
    std::vector<Thread> threads;
    size_t idle = 0;
  };

  void Run(Pool& pool);
  void Grow(Pool& pool) MOONPOOL_REQUIRES(mutex_);

  Clock& clock_;
  const bool threaded_;
  Mutex mutex_;
  Pool quick_ MOONPOOL_GUARDED_BY(mutex_) = {"mp-timer", 1, {}, {}, {}, 0};
  Pool blocking_ MOONPOOL_GUARDED_BY(mutex_) = {"mp-resolve-", kThreadsMax, {}, {}, {}, 0};
  bool stopped_ MOONPOOL_GUARDED_BY(mutex_) = false;
};

}  // namespace moonpool::engine
