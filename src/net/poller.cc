#include "net/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/str.h"
#include "net/socket.h"

namespace moonpool::net {
namespace {

epoll_event ToEpoll(uint64_t token, Poller::Interest interest) {
  epoll_event event{};
  if (interest.read) event.events |= EPOLLIN;
  if (interest.write) event.events |= EPOLLOUT;
  event.data.u64 = token;
  return event;
}

}  // namespace

Result<Waker> Waker::Create() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) return Status(Code::kExhausted, Str("eventfd: ", ErrnoText(errno)));
  return Waker(std::move(fd));
}

void Waker::Wake() const {
  const uint64_t one = 1;
  // Full (EAGAIN) means that it is readable already.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof(one));
}

void Waker::Drain() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof(count));
}

Result<Poller> Poller::Create() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd.valid()) return Status(Code::kExhausted, Str("epoll_create1: ", ErrnoText(errno)));
  return Poller(std::move(fd));
}

Status Poller::Add(int fd, uint64_t token, Interest interest) {
  epoll_event event = ToEpoll(token, interest);
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
  return Status(Code::kExhausted, Str("epoll_ctl: ", ErrnoText(errno)));
}

void Poller::Modify(int fd, uint64_t token, Interest interest) {
  epoll_event event = ToEpoll(token, interest);
  MOONPOOL_CHECK(::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Poller::Remove(int fd) { ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

size_t Poller::Wait(std::span<Event> out, int timeout_ms) {
  std::array<epoll_event, 64> raw;
  const int room = static_cast<int>(std::min(out.size(), raw.size()));
  const int count = ::epoll_wait(fd_.get(), raw.data(), room, timeout_ms);
  if (count <= 0) return 0;  // EINTR: the caller looks at its clock and comes again
  for (int i = 0; i < count; ++i) {
    const uint32_t events = raw[static_cast<size_t>(i)].events;
    out[static_cast<size_t>(i)] = Event{.token = raw[static_cast<size_t>(i)].data.u64,
                                        .readable = (events & EPOLLIN) != 0,
                                        .writable = (events & EPOLLOUT) != 0,
                                        .broken = (events & (EPOLLERR | EPOLLHUP)) != 0};
  }
  return static_cast<size_t>(count);
}

}  // namespace moonpool::net
