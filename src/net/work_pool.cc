#include "net/work_pool.h"

#include <deque>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"

namespace moonpool::net {

struct WorkPool::State {
  size_t queue_max = 0;  // constant
  Mutex mutex;
  CondVar work;
  CondVar idle;
  std::deque<std::function<void()>> queue MOONPOOL_GUARDED_BY(mutex);
  size_t running MOONPOOL_GUARDED_BY(mutex) = 0;
  bool closed MOONPOOL_GUARDED_BY(mutex) = false;
  std::vector<Thread> threads;  // constant after construction

  void Work() {
    while (true) {
      std::function<void()> job;
      {
        MutexLock lock(mutex);
        while (queue.empty() && !closed) work.Wait(mutex);
        if (closed) return;
        job = std::move(queue.front());
        queue.pop_front();
        ++running;
      }
      job();
      job = nullptr;  // what it holds is released before it counts as done
      MutexLock lock(mutex);
      if (--running == 0) idle.NotifyAll();
    }
  }
};

WorkPool::WorkPool(const Options& options) : state_(std::make_unique<State>()) {
  state_->queue_max = options.queue_max;
  for (int i = 0; i < options.threads; ++i) {
    state_->threads.emplace_back(options.thread_name,
                                 [state = state_.get()](std::stop_token) { state->Work(); });
  }
}

WorkPool::~WorkPool() {
  Close(Duration(0));
  state_->threads.clear();  // joins
}

bool WorkPool::Submit(std::function<void()> job) {
  MutexLock lock(state_->mutex);
  if (state_->closed || state_->queue.size() >= state_->queue_max) return false;
  state_->queue.push_back(std::move(job));
  state_->work.NotifyOne();
  return true;
}

bool WorkPool::Close(Duration patience) {
  std::deque<std::function<void()>> dropped;  // destroyed after the lock is released
  const auto until = BootClock::now() + patience;
  MutexLock lock(state_->mutex);
  state_->closed = true;
  dropped.swap(state_->queue);
  state_->work.NotifyAll();
  while (state_->running > 0) {
    const Duration left = until - BootClock::now();
    if (left <= Duration(0)) return false;
    state_->idle.WaitFor(state_->mutex, left);
  }
  return true;
}

}  // namespace moonpool::net
