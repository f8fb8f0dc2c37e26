#pragma once

// WorkPool: a bounded queue of jobs and the worker threads that run them.
//
// Threads: thread-safe. A job must not let an exception out.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"

namespace moonpool::net {

class WorkPool {
 public:
  struct Options {
    std::string thread_name{};
    int threads = 1;
    size_t queue_max = 1024;  // jobs waiting, not counting those that run
  };

  explicit WorkPool(const Options& options);
  ~WorkPool();  // Close, then waits for running jobs however long they take
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False, and the job is destroyed, when the queue is full or closed.
  bool Submit(std::function<void()> job);

  // Drops the waiting jobs and waits up to `patience` for the running ones; true when none runs any
  // more. Idempotent.
  bool Close(Duration patience);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::net
