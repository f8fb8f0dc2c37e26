#include "engine/task_runner.h"

#include <utility>

#include "base/str.h"

namespace moonpool::engine {

// Somebody idle must be there for what is queued, also for what is due later: nobody else would look then.
void TaskRunner::Grow(Pool& pool) {
  if (!threaded_ || stopped_ || pool.idle > 0 || pool.tasks.empty() ||
      pool.threads.size() >= pool.threads_max)
    return;
  const std::string name = pool.threads_max == 1 ? pool.name : Str(pool.name, pool.threads.size());
  pool.threads.emplace_back(name, [this, &pool](const std::stop_token&) { Run(pool); });
}

void TaskRunner::Post(Kind kind, Task task, Time when) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  Pool& pool = kind == Kind::kQuick ? quick_ : blocking_;
  pool.tasks.emplace(when, std::move(task));
  Grow(pool);
  pool.changed.NotifyOne();
}

void TaskRunner::Run(Pool& pool) {
  MutexLock lock(mutex_);
  while (!stopped_) {
    const Time now = clock_.Now();
    const Time next = pool.tasks.empty() ? kNever : pool.tasks.begin()->first;
    if (next > now) {
      ++pool.idle;
      pool.changed.WaitFor(mutex_, next - now);
      --pool.idle;
      continue;
    }
    Task task = std::move(pool.tasks.begin()->second);
    pool.tasks.erase(pool.tasks.begin());
    Grow(pool);
    if (pool.idle > 0 && !pool.tasks.empty()) pool.changed.NotifyOne();
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
      const Time now = clock_.Now();
      for (Pool* pool : {&quick_, &blocking_}) {
        if (stopped_ || task || pool->tasks.empty() || pool->tasks.begin()->first > now) continue;
        task = std::move(pool->tasks.begin()->second);
        pool->tasks.erase(pool->tasks.begin());
      }
    }
    if (!task) return ran;
    task();
    ran = true;
  }
}

void TaskRunner::Stop() {
  std::vector<Thread> threads;
  std::multimap<Time, Task> dropped[2];
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (Pool* pool : {&quick_, &blocking_}) {
      for (Thread& thread : pool->threads) threads.push_back(std::move(thread));
      pool->threads.clear();
      std::swap(dropped[pool == &quick_ ? 0 : 1], pool->tasks);
      pool->changed.NotifyAll();
    }
  }
  for (Thread& thread : threads) thread.Join();
}

}  // namespace moonpool::engine
