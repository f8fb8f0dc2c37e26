#include "transport/tcp/event_thread.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/str.h"
#include "net/socket.h"

namespace moonpool::tcp {
namespace {

// How long the connection that was busy last may be looked at before the others are.
constexpr Duration kEpollEvery = std::chrono::microseconds(20);

}  // namespace

Result<std::unique_ptr<EventThread>> EventThread::Create(Shared& shared, OnClosed on_closed) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) {
    return Status(Code::kExhausted, Str("event thread: ", net::ErrnoText(errno)));
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeToken}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return Status(Code::kExhausted, Str("event thread: ", net::ErrnoText(errno)));
  }
  return std::unique_ptr<EventThread>(
      new EventThread(shared, std::move(on_closed), std::move(epoll), std::move(wake)));
}

EventThread::EventThread(Shared& shared, OnClosed on_closed, UniqueFd epoll, UniqueFd wake)
    : shared_(shared),
      on_closed_(std::move(on_closed)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      context_(shared),
      spin_(shared.options.spin_max) {
  context_.epoll = epoll_.get();
}

EventThread::~EventThread() { Stop(); }

void EventThread::Start(int number, EventSource* source) {
  source_ = source;
  thread_ = Thread(Str("mp-tcp-", number), [this](const std::stop_token& stop) { Loop(stop); });
}

void EventThread::Stop() {
  thread_.RequestStop();
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.Join();
  // What was given and not taken ends here, too.
  MutexLock lock(mutex_);
  tasks_.clear();
}

void EventThread::Run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
  }
  eventfd_write(wake_.get(), 1);
}

void EventThread::RunTasks() {
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void EventThread::Serve(UniqueFd fd, uint64_t id) {
  auto connection = std::make_unique<Serving>(context_, std::move(fd), id);
  if (!connection->Start()) {
    connection.reset();
    on_closed_(id);
    return;
  }
  connections_.emplace(id, std::move(connection));
}

void EventThread::Close(uint64_t id) {
  if (hot_ != nullptr && hot_->id() == id) hot_ = nullptr;
  if (connections_.erase(id) > 0) on_closed_(id);
}

bool EventThread::ServeHot() {
  if (hot_ == nullptr) return false;
  if (!hot_->OnEvent(true, false)) {
    Close(hot_->id());
    return true;
  }
  return hot_->received();
}

// Waits for events until `until`; spins first when that has paid lately. While it spins the
// connection that was busy last is read from directly, and epoll is asked now and then: a request
// that follows another costs one system call less.
int EventThread::Wait(void* events, int room, Time until) {
  auto* const out = static_cast<epoll_event*>(events);
  int n = epoll_wait(epoll_.get(), out, room, 0);
  if (n != 0) return n;
  const Clock& clock = shared_.env.clock;
  const Time began = clock.Now();
  Time now = began;
  if (spin_.worth_it()) {
    Time since = began;
    Time asked = began;
    while (n == 0 && now - since < spin_.spin_max()) {
      sched_yield();
      const bool served = ServeHot();
      now = clock.Now();
      if (hot_ == nullptr || now - asked >= kEpollEvery) {
        n = epoll_wait(epoll_.get(), out, room, 0);
        asked = now;
      }
      if (!served) continue;
      spin_.Waited(now - since);
      since = now;
      if (now >= until) return n;
    }
  }
  if (n == 0) {
    n = epoll_wait(epoll_.get(), out, room, MillisUntil(now, until, 60'000));
    now = clock.Now();
  }
  spin_.Waited(now - began);
  return n;
}

void EventThread::Loop(const std::stop_token& stop) {
  std::array<epoll_event, 64> events;
  Time next = kNever;
  while (!stop.stop_requested()) {
    const int n = Wait(events.data(), static_cast<int>(events.size()), next);
    bool woken = false;
    if (n > 0) hot_ = nullptr;
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 == kWakeToken) {
        woken = true;
      } else if ((event.data.u64 & 1) != 0) {
        source_->OnEvent(event.data.u64);
      } else {
        auto* const connection = static_cast<Serving*>(event.data.ptr);
        constexpr uint32_t kOver = EPOLLERR | EPOLLHUP;
        if (!connection->OnEvent((event.events & (EPOLLIN | kOver)) != 0,
                                 (event.events & (EPOLLOUT | kOver)) != 0)) {
          Close(connection->id());
        } else if (n == 1) {
          hot_ = connection;
        }
      }
    }
    // After the events, none of which may be of a connection that a task closes.
    if (woken) RunTasks();
    if (source_ != nullptr) next = source_->OnTime(shared_.env.clock.Now());
  }
  while (!connections_.empty()) Close(connections_.begin()->first);
}

}  // namespace moonpool::tcp
