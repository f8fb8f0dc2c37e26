#include "net/socket.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/str.h"

namespace moonpool::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool SetInt(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

Result<std::vector<Endpoint>> ListenCandidates(const std::string& host, uint16_t port) {
  std::vector<Endpoint> out;
  if (host.empty()) {
    out.push_back(*NumericEndpoint("::", port));
    out.push_back(*NumericEndpoint("0.0.0.0", port));
    return out;
  }
  if (const auto numeric = NumericEndpoint(host, port)) {
    out.push_back(*numeric);
    return out;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) {
    return Status(Code::kInvalidArgument,
                  Str("cannot listen on host '", host, "': ", ::gai_strerror(error)));
  }
  for (const addrinfo* it = list; it != nullptr; it = it->ai_next) {
    out.push_back(Endpoint(it->ai_addr, it->ai_addrlen).WithPort(port));
  }
  ::freeaddrinfo(list);
  return out;
}

Code ListenCode(int error) {
  switch (error) {
    case EADDRINUSE:
      return Code::kAlreadyExists;
    case EADDRNOTAVAIL:
    case EACCES:
      return Code::kInvalidArgument;
    case EAFNOSUPPORT:
      return Code::kUnsupported;
    default:
      return Code::kExhausted;
  }
}

Result<UniqueFd> ListenOn(const Endpoint& at, bool dual_stack, const ListenOptions& options) {
  const auto fail = [&at](const char* what) {
    const int error = errno;
    return Status(ListenCode(error),
                  Str("cannot listen on ", at.ToString(), ": ", what, ": ", ErrnoText(error)));
  };
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fail("socket");
  SetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) {
    const bool only = !dual_stack || options.ipv6_only;
    if (!SetInt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, only ? 1 : 0)) return fail("IPV6_V6ONLY");
  }
  if (options.buffer_bytes > 0) SetBuffers(fd.get(), options.buffer_bytes);
  if (::bind(fd.get(), at.data(), at.size()) != 0) return fail("bind");
  if (::listen(fd.get(), options.backlog) != 0) return fail("listen");
  return fd;
}

}  // namespace

std::string ErrnoText(int error) { return std::generic_category().message(error); }

Result<UniqueFd> Listen(const std::string& host, uint16_t port, const ListenOptions& options) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::vector<Endpoint> candidates, ListenCandidates(host, port));
  Status last(Code::kInvalidArgument, Str("host '", host, "' has no address to listen on"));
  for (const Endpoint& at : candidates) {
    auto fd = ListenOn(at, host.empty(), options);
    if (fd.ok()) return fd;
    last = fd.status();
    if (fd.code() == Code::kAlreadyExists) break;  // another family would hide that it is taken
  }
  return last;
}

Endpoint LocalEndpoint(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(fd, raw, &size) != 0) return Endpoint();
  return Endpoint(raw, size);
}

Endpoint PeerEndpoint(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(fd, raw, &size) != 0) return Endpoint();
  return Endpoint(raw, size);
}

uint16_t LocalPort(int fd) { return LocalEndpoint(fd).port(); }

std::string PeerName(int fd) { return PeerEndpoint(fd).ToString(); }

Result<UniqueFd> Accept(int listener) {
  while (true) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    switch (errno) {
      case EAGAIN:
        return Status(Code::kAgain, "no connection waits");
      case EINTR:
      case ECONNABORTED:
      case EPROTO:
        continue;  // that connection is gone already; look at the next
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Status(Code::kExhausted, Str("accept: ", ErrnoText(errno)));
      default:
        // Linux hands errors of the new connection's network to accept: like a gone connection,
        // but without a promise that the next call makes progress.
        return Status(Code::kAgain, Str("accept: ", ErrnoText(errno)));
    }
  }
}

Status ConnectFailure(const Endpoint& to, int error) {
  Code code = Code::kInternal;
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
    case EACCES:  // a local firewall says so
    case EPERM:
    case EAFNOSUPPORT:
    case EINVAL:  // e.g. a link-local address without a zone
      code = Code::kUnavailable;
      break;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRNOTAVAIL:  // every local port towards it is in use
    case EAGAIN:
      code = Code::kExhausted;
      break;
    default:
      break;
  }
  return Status(code, Str("connect to ", to.ToString(), ": ", ErrnoText(error)));
}

Result<UniqueFd> StartConnect(const Endpoint& to) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ConnectFailure(to, errno);
  SetNoDelay(fd.get());
  if (::connect(fd.get(), to.data(), to.size()) == 0 || errno == EINPROGRESS || errno == EINTR) {
    return fd;
  }
  return ConnectFailure(to, errno);
}

Status FinishConnect(int fd, const Endpoint& to) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return ConnectFailure(to, error);
  if (!PeerEndpoint(fd).valid()) return ConnectFailure(to, ENOTCONN);
  // A port that nobody listens on and that the kernel picked for this very socket connects to
  // itself.
  if (LocalEndpoint(fd) == PeerEndpoint(fd)) return ConnectFailure(to, ECONNREFUSED);
  return Status::Ok();
}

Status WaitFor(const Clock& clock, int fd, short events, const Until& until) {
  while (true) {
    pollfd fds[2] = {{fd, events, 0}, {until.wake_fd, POLLIN, 0}};  // poll ignores negative ones
    const int ready = ::poll(fds, 2, MillisUntil(clock.Now(), until.deadline, 60'000));
    if (ready > 0 && fds[1].revents != 0) return Status(Code::kCancelled, "closed while waiting");
    if (ready > 0) return Status::Ok();
    if (ready < 0 && errno != EINTR) {
      return Status(Code::kInternal, Str("poll: ", ErrnoText(errno)));
    }
    if (clock.Now() >= until.deadline) return Status(Code::kTimedOut, "the deadline passed");
  }
}

Result<UniqueFd> Connect(const Clock& clock, std::span<const Endpoint> endpoints, Time deadline,
                         int wake_fd) {
  Status last(Code::kInvalidArgument, "no address to connect to");
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const Time now = clock.Now();
    const auto tries_left = static_cast<int64_t>(endpoints.size() - i);
    Time until = deadline;
    if (deadline != kNever) until = now + std::max(Duration(0), deadline - now) / tries_left;
    if (deadline == kNever && tries_left > 1) until = After(now, seconds(10));
    auto fd = StartConnect(endpoints[i]);
    if (!fd.ok()) {
      last = fd.status();
      continue;
    }
    const Status waited = WaitFor(clock, fd->get(), POLLOUT, {until, wake_fd});
    if (waited.code() == Code::kCancelled) return waited;
    last = waited.ok() ? FinishConnect(fd->get(), endpoints[i])
                       : waited.WithContext(Str("connect to ", endpoints[i].ToString()));
    if (last.ok()) return fd;
  }
  return last;
}

void SetNoDelay(int fd) { SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1); }

void SetBuffers(int fd, int bytes) {
  SetInt(fd, SOL_SOCKET, SO_RCVBUF, bytes);
  SetInt(fd, SOL_SOCKET, SO_SNDBUF, bytes);
}

void SetSendBuffer(int fd, int bytes) { SetInt(fd, SOL_SOCKET, SO_SNDBUF, bytes); }

bool SetCongestionControl(int fd, const char* name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                    static_cast<socklen_t>(std::strlen(name))) == 0;
}

bool StaysOnThisHost(int fd) {
  const Endpoint here = LocalEndpoint(fd);
  const Endpoint there = PeerEndpoint(fd);
  if (!here.valid() || !there.valid()) return false;
  return here.WithPort(0) == there.WithPort(0) || (here.loopback() && there.loopback());
}

void SetDeadPeerTimeout(int fd, Duration timeout) {
  const auto whole = std::chrono::duration_cast<milliseconds>(timeout).count();
  const int ms = static_cast<int>(std::clamp<int64_t>(whole, 1000, 3'600'000));
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, ms / 2000));
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, ms / 6000));
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

}  // namespace moonpool::net
