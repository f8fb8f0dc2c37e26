#pragma once

// Poller waits for many descriptors at once (epoll, level-triggered); Waker makes another thread's
// wait return. The whole event loop of a thread is: Wait, then handle each event.
//
// Threads: a Poller is thread-bound. Waker::Wake is thread-safe and may be called from a signal
// handler.

#include <cstdint>
#include <span>

#include "base/fd.h"
#include "base/status.h"

namespace moonpool::net {

class Waker {
 public:
  static Result<Waker> Create();
  Waker(Waker&&) = default;
  Waker& operator=(Waker&&) = default;

  // Readable from the first Wake until Drain.
  int fd() const { return fd_.get(); }
  void Wake() const;
  void Drain() const;

 private:
  explicit Waker(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

class Poller {
 public:
  struct Event {
    uint64_t token = 0;
    bool readable = false;
    bool writable = false;
    bool broken = false;  // an error, or both directions are closed
  };
  struct Interest {
    bool read = false;
    bool write = false;
  };

  static Result<Poller> Create();
  Poller(Poller&&) = default;
  Poller& operator=(Poller&&) = default;

  // kExhausted: the kernel's bound on watched descriptors is reached.
  Status Add(int fd, uint64_t token, Interest interest);
  void Modify(int fd, uint64_t token, Interest interest);
  void Remove(int fd);

  // Waits up to `timeout_ms` (negative: for ever) and fills the first events; returns how many.
  size_t Wait(std::span<Event> out, int timeout_ms);

 private:
  explicit Poller(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace moonpool::net
