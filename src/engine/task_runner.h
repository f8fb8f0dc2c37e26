#pragma once

// TaskRunner: the engine's slow work (finding peers, repairing segments, delivering notifications), off the data path.
// Tasks run on threads of its own (mp-resolve-N), made when none is idle, kThreadsMax at most: a peer that lets a task
// wait for its deadline does not hold up others. Without threads, RunDue runs what is due.
//
// Threads: thread-safe. Tasks must end by themselves (their calls have deadlines); Stop waits for those that run and
// drops the others.

#include <functional>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace moonpool::engine {

class TaskRunner {
 public:
  using Task = std::function<void()>;
  static constexpr int kThreadsMax = 16;

  TaskRunner(Clock& clock, bool threads) : clock_(clock), threaded_(threads) {}
  ~TaskRunner() { Stop(); }
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;

  // Runs `task` at `when` or soon after; at once when that has passed. Dropped after Stop.
  void Post(Task task, Time when = Time{});
  // Without threads: runs the tasks that are due; true if there was one.
  bool RunDue();
  void Stop();

 private:
  void Run();

  Clock& clock_;
  const bool threaded_;
  Mutex mutex_;
  CondVar changed_;
  // The bound is the callers': one repair, one expiry and one probe per segment, and one per batch with a notification.
  std::multimap<Time, Task> tasks_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<Thread> workers_ MOONPOOL_GUARDED_BY(mutex_);
  int idle_ MOONPOOL_GUARDED_BY(mutex_) = 0;
  bool stopped_ MOONPOOL_GUARDED_BY(mutex_) = false;
};

}  // namespace moonpool::engine
