#include "http/client.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <list>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/str.h"
#include "net/poller.h"
#include "net/resolver.h"
#include "net/socket.h"

namespace moonpool::http {
namespace {

constexpr Duration kIdleTimeout = std::chrono::seconds(30);  // less than what servers grant
constexpr Duration kDeadPeerTimeout = std::chrono::seconds(10);
constexpr size_t kReadBytes = size_t{64} * 1024;

struct Connection {
  std::string name;  // "host:port"
  UniqueFd fd;
  Time idle_since{};
};

// Nothing may arrive on an idle connection: bytes or an end make it useless.
bool StillOpen(int fd) {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

}  // namespace

struct Client::State {
  State(const Clock& clock_in, size_t body_bytes_max_in)
      : clock(clock_in), body_bytes_max(body_bytes_max_in), resolver(clock_in) {}

  const Clock& clock;
  const size_t body_bytes_max;
  net::Resolver resolver;
  std::optional<net::Waker> waker;  // woken once, by Close; empty: no descriptor was left

  Mutex mutex;
  CondVar left;  // a call ended
  bool closed MOONPOOL_GUARDED_BY(mutex) = false;
  size_t active MOONPOOL_GUARDED_BY(mutex) = 0;
  std::list<Connection> idle MOONPOOL_GUARDED_BY(mutex);  // longest idle first

  Result<UniqueFd> TakeIdle(const std::string& name);
  void Keep(const std::string& name, UniqueFd fd);
  Result<UniqueFd> Connect(const net::HostPort& server, Time deadline);
  Status SendAll(int fd, std::string_view bytes, Time deadline);
  Result<Decoded<Response>> Exchange(int fd, std::string_view bytes, std::string_view method,
                                     Time deadline);
  Result<Response> Run(const net::HostPort& server, const Request& request, Time deadline);
};

// kNotFound: none that is of use.
Result<UniqueFd> Client::State::TakeIdle(const std::string& name) {
  std::vector<Connection> stale;  // closed after the lock is released
  MutexLock lock(mutex);
  const Time now = clock.Now();
  for (auto it = idle.begin(); it != idle.end();) {
    const bool old = now - it->idle_since > kIdleTimeout;
    if (!old && it->name != name) {
      ++it;
      continue;
    }
    Connection connection = std::move(*it);
    it = idle.erase(it);
    if (!old && StillOpen(connection.fd.get())) return std::move(connection.fd);
    stale.push_back(std::move(connection));
  }
  return Status(Code::kNotFound, "no idle connection");
}

void Client::State::Keep(const std::string& name, UniqueFd fd) {
  Connection evicted;
  MutexLock lock(mutex);
  if (closed) return;
  if (idle.size() >= kIdleMax) {
    evicted = std::move(idle.front());
    idle.pop_front();
  }
  idle.push_back(Connection{name, std::move(fd), clock.Now()});
}

Result<UniqueFd> Client::State::Connect(const net::HostPort& server, Time deadline) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::vector<net::Endpoint> endpoints,
                            resolver.Resolve(server, deadline));
  MOONPOOL_ASSIGN_OR_RETURN(UniqueFd fd, net::Connect(clock, endpoints, deadline, waker->fd()));
  net::SetDeadPeerTimeout(fd.get(), kDeadPeerTimeout);
  return fd;
}

Status Client::State::SendAll(int fd, std::string_view bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      MOONPOOL_RETURN_IF_ERROR(net::WaitFor(clock, fd, POLLOUT, {deadline, waker->fd()}));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return Status::Ok();  // the server may have answered before it closed: read that
    } else if (errno != EINTR) {
      return Status(Code::kUnavailable, Str("send: ", net::ErrnoText(errno)));
    }
  }
  return Status::Ok();
}

Result<Decoded<Response>> Client::State::Exchange(int fd, std::string_view bytes,
                                                  std::string_view method, Time deadline) {
  MOONPOOL_RETURN_IF_ERROR(SendAll(fd, bytes, deadline));
  std::string in;
  std::array<char, kReadBytes> scratch;
  ResponseContext context{.method = method, .eof = false, .body_bytes_max = body_bytes_max};
  while (true) {
    const ssize_t got = ::recv(fd, scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      MOONPOOL_RETURN_IF_ERROR(net::WaitFor(clock, fd, POLLIN, {deadline, waker->fd()}));
      continue;
    }
    if (got < 0) return Status(Code::kUnavailable, Str("receive: ", net::ErrnoText(errno)));
    context.eof = got == 0;
    in.append(scratch.data(), static_cast<size_t>(got));
    MOONPOOL_ASSIGN_OR_RETURN(auto decoded, DecodeResponse(in, context));
    if (decoded.has_value()) return std::move(*decoded);
    if (!context.eof) continue;
    return Status(Code::kUnavailable, in.empty() ? "the server closed the connection"
                                                 : "the server closed in mid-response");
  }
}

Result<Response> Client::State::Run(const net::HostPort& server, const Request& request,
                                    Time deadline) {
  const std::string name = server.ToString();
  const std::string bytes = Encode(request, name);
  while (true) {
    auto fd = TakeIdle(name);
    const bool reused = fd.ok();
    if (!reused) fd = Connect(server, deadline);
    if (!fd.ok()) return fd.status();
    auto decoded = Exchange(fd->get(), bytes, request.method, deadline);
    if (decoded.ok()) {
      if (decoded->keep_alive) Keep(name, std::move(fd).value());
      return std::move(decoded->message);
    }
    // A kept connection may have been closed just now. Each turn uses up one, so this ends.
    const bool again = reused && decoded.code() == Code::kUnavailable && request.method != "POST";
    if (!again) return decoded.status().WithContext("exchange");
  }
}

Client::Client(const Clock& clock, size_t body_bytes_max)
    : state_(std::make_unique<State>(clock, body_bytes_max)) {
  auto waker = net::Waker::Create();
  if (waker.ok()) state_->waker.emplace(std::move(waker).value());
}

Client::~Client() { Close(); }

Result<Response> Client::Send(const ClientRequest& request, Time deadline) {
  const std::string what = Str("http ", request.method, " ", request.url.substr(0, 200));
  if (!state_->waker) return Status(Code::kExhausted, Str(what, ": no descriptor was left"));
  auto url = ParseUrl(request.url);
  if (!url.ok()) return url.status().WithContext(what);
  Request message{.method = request.method,
                  .path = url->path,
                  .query = url->query,
                  .headers = request.headers,
                  .body = request.body};
  for (const auto& [name, value] : request.query) message.query[name] = value;
  {
    MutexLock lock(state_->mutex);
    if (state_->closed) return Status(Code::kCancelled, Str(what, ": the client is closed"));
    ++state_->active;
  }
  auto response = state_->Run({url->host, url->port}, message, deadline);
  {
    MutexLock lock(state_->mutex);
    --state_->active;
    state_->left.NotifyAll();
  }
  if (!response.ok()) return response.status().WithContext(what);
  return response;
}

void Client::Close() {
  std::list<Connection> idle;  // closed after the lock is released
  {
    MutexLock lock(state_->mutex);
    state_->closed = true;
    idle.swap(state_->idle);
  }
  if (state_->waker) state_->waker->Wake();
  state_->resolver.Cancel();
  MutexLock lock(state_->mutex);
  while (state_->active > 0) state_->left.Wait(state_->mutex);
}

}  // namespace moonpool::http
