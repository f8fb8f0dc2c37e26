#include "engine/task_runner.h"

#include <algorithm>
#include <utility>

#include "base/str.h"

namespace moonpool::engine {

void TaskRunner::Post(Task task, Time when) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    tasks_.emplace(when, std::move(task));
    const size_t due = std::distance(tasks_.begin(), tasks_.upper_bound(clock_.Now()));
    if (threaded_ && static_cast<size_t>(idle_) < std::max<size_t>(due, 1) && workers_.size() < kThreadsMax) {
      workers_.emplace_back(Str("mp-resolve-", workers_.size()), [this](const std::stop_token&) { Run(); });
    }
  }
  changed_.NotifyOne();
}

void TaskRunner::Run() {
  MutexLock lock(mutex_);
  while (!stopped_) {
    if (tasks_.empty()) {
      ++idle_;
      changed_.Wait(mutex_);
      --idle_;
      continue;
    }
    const auto first = tasks_.begin();
    const Time now = clock_.Now();
    if (first->first > now) {
      ++idle_;
      changed_.WaitFor(mutex_, first->first - now);
      --idle_;
      continue;
    }
    Task task = std::move(first->second);
    tasks_.erase(first);
    mutex_.Unlock();
    task();
    task = nullptr;
    mutex_.Lock();
  }
}

bool TaskRunner::RunDue() {
  bool ran = false;
  for (;;) {
    Task task;
    {
      MutexLock lock(mutex_);
      if (stopped_ || tasks_.empty() || tasks_.begin()->first > clock_.Now()) return ran;
      task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
    }
    task();
    ran = true;
  }
}

void TaskRunner::Stop() {
  std::vector<Thread> workers;
  std::multimap<Time, Task> dropped;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    std::swap(workers, workers_);
    std::swap(dropped, tasks_);
  }
  changed_.NotifyAll();
  for (Thread& worker : workers) worker.Join();
}

}  // namespace moonpool::engine
