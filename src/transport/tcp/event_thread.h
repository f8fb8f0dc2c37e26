#pragma once

// EventThread: serves the connections that are given to it (mp-tcp-N). Thread 0 also has a Greeter:
// the listening socket and the connections whose handshake is not over.
//
// Threads: Start, Stop, Give and Post-like calls are thread-safe; the rest runs in its own thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/tcp/serving.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/spin.h"

namespace moonpool::tcp {

// What has the events of a thread besides its connections. Its epoll data are odd numbers, which
// no address of a Serving is.
class EventSource {
 public:
  virtual ~EventSource() = default;
  virtual void OnEvent(uint64_t token) = 0;
  // Does what is due; returns when it wants to be called next.
  virtual Time OnTime(Time now) = 0;
};

class EventThread {
 public:
  // `on_closed(id)` is called in the thread when a connection is gone.
  using OnClosed = std::function<void(uint64_t id)>;

  static Result<std::unique_ptr<EventThread>> Create(Shared& shared, OnClosed on_closed);
  ~EventThread();
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  int epoll() const { return epoll_.get(); }
  void Start(int number, EventSource* source);
  // Ends the thread and closes its connections. Idempotent.
  void Stop();

  // Runs `task` in the thread, after those given before. Dropped once the thread has stopped.
  void Run(std::function<void()> task);

  // In the thread only.
  void Serve(UniqueFd fd, uint64_t id);
  void Close(uint64_t id);

 private:
  static constexpr uint64_t kWakeToken = 1;

  EventThread(Shared& shared, OnClosed on_closed, UniqueFd epoll, UniqueFd wake);
  void Loop(const std::stop_token& stop);
  int Wait(void* events, int room, Time until);
  // Reads from hot_ without asking epoll; true if something came.
  bool ServeHot();
  void RunTasks();

  Shared& shared_;
  const OnClosed on_closed_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  EventSource* source_ = nullptr;
  ServingContext context_;
  SpinPolicy spin_;
  Serving* hot_ = nullptr;  // the connection that alone had something to do last time, or null
  std::unordered_map<uint64_t, std::unique_ptr<Serving>> connections_;

  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ MOONPOOL_GUARDED_BY(mutex_);
  bool stopped_ MOONPOOL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace moonpool::tcp
