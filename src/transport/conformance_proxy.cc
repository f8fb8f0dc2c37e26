#include "transport/conformance_proxy.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/str.h"

namespace moonpool::transport::conformance {
namespace {

struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
  int family = 0;
};

Endpoint Numeric(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  MOONPOOL_CHECK(::getaddrinfo(host.c_str(), Str(port).c_str(), &hints, &found) == 0);
  Endpoint out;
  out.family = found->ai_family;
  out.size = found->ai_addrlen;
  MOONPOOL_CHECK(out.size <= sizeof(out.address));
  std::copy_n(reinterpret_cast<const char*>(found->ai_addr), out.size,
              reinterpret_cast<char*>(&out.address));
  ::freeaddrinfo(found);
  return out;
}

UniqueFd EventFd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  MOONPOOL_CHECK(fd.valid());
  return fd;
}

void Signal(int fd) { ::eventfd_write(fd, 1); }

}  // namespace

Listener::Listener(const std::string& host) {
  const Endpoint at = Numeric(host, 0);
  fd_.Reset(::socket(at.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  MOONPOOL_CHECK(fd_.valid());
  MOONPOOL_CHECK(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0);
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  MOONPOOL_CHECK(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

void Listener::Listen() { MOONPOOL_CHECK(::listen(fd_.get(), 1024) == 0); }

UniqueFd Connect(const std::string& host, uint16_t port) {
  const Endpoint to = Numeric(host, port);
  UniqueFd fd(::socket(to.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  MOONPOOL_CHECK(fd.valid());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) return {};
  return fd;
}

// --- GarbageServer

GarbageServer::GarbageServer(const std::string& host, uint64_t seed)
    : listener_(host), wake_(EventFd()) {
  listener_.Listen();
  thread_ = Thread("garbage", [this, seed](const std::stop_token& stop) {
    Random random(seed);
    std::vector<UniqueFd> accepted;
    while (!stop.stop_requested()) {
      std::array<pollfd, 2> waits = {{{listener_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
      ::poll(waits.data(), waits.size(), -1);
      if (!(waits[0].revents & POLLIN)) continue;
      UniqueFd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      std::array<uint64_t, 512> noise;
      for (uint64_t& word : noise) word = random.Next();
      (void)!::send(fd.get(), noise.data(), sizeof(noise), MSG_NOSIGNAL);
      accepted.push_back(std::move(fd));
    }
  });
}

GarbageServer::~GarbageServer() {
  thread_.RequestStop();
  Signal(wake_.get());
  thread_.Join();
}

// --- Proxy

Proxy::Proxy(const std::string& host, uint16_t target_port)
    : host_(host), target_port_(target_port), listener_(host), wake_(EventFd()) {
  listener_.Listen();
  thread_ = Thread("proxy", [this](const std::stop_token& stop) { Run(stop); });
}

Proxy::~Proxy() {
  thread_.RequestStop();
  Wake();
  thread_.Join();
}

void Proxy::Wake() { Signal(wake_.get()); }

void Proxy::SetStalled(bool stalled) {
  stalled_.store(stalled, std::memory_order_release);
  Wake();
}

void Proxy::CutAll() {
  cut_.store(true, std::memory_order_release);
  Wake();
}

void Proxy::CorruptAt(uint64_t ahead) {
  corrupt_at_.store(forwarded() + ahead, std::memory_order_release);
}

void Proxy::Accept(std::list<Connection>& connections) {
  UniqueFd client(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client.valid()) return;
  const Endpoint to = Numeric(host_, target_port_);
  UniqueFd server(::socket(to.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0 &&
      errno != EINPROGRESS) {
    return;
  }
  Connection& made = connections.emplace_back();
  made.up = {client.get(), server.get(), {}, false};
  made.down = {server.get(), client.get(), {}, false};
  made.client = std::move(client);
  made.server = std::move(server);
}

void Proxy::Move(Connection& connection, Stream& stream, bool readable, bool writable) {
  if (readable && !stream.ended && stream.held.size() < kHeldMax) {
    std::array<char, 64 * 1024> bytes;
    const ssize_t got = ::recv(stream.from, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      stream.held.append(bytes.data(), static_cast<size_t>(got));
    } else if (got == 0) {
      stream.ended = true;
    } else if (errno != EAGAIN && errno != EINTR) {
      connection.dead = true;
    }
  }
  if (writable && !stream.held.empty()) {
    const uint64_t at = corrupt_at_.load(std::memory_order_acquire);
    const uint64_t passed = forwarded();
    if (at >= passed && at - passed < stream.held.size()) {
      stream.held[at - passed] ^= 0x04;
      corrupt_at_.store(~uint64_t{0}, std::memory_order_release);
    }
    const ssize_t sent = ::send(stream.to, stream.held.data(), stream.held.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      stream.held.erase(0, static_cast<size_t>(sent));
      forwarded_.fetch_add(static_cast<uint64_t>(sent), std::memory_order_relaxed);
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      connection.dead = true;
    }
  }
  if (stream.ended && stream.held.empty()) ::shutdown(stream.to, SHUT_WR);
  if (connection.up.ended && connection.down.ended && connection.up.held.empty() &&
      connection.down.held.empty()) {
    connection.dead = true;
  }
}

void Proxy::Run(const std::stop_token& stop) {
  std::list<Connection> connections;
  while (!stop.stop_requested()) {
    std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    const bool stalled = stalled_.load(std::memory_order_acquire);
    if (!stalled) {
      for (const Connection& each : connections) {
        for (const auto& [in, out] :
             {std::pair(&each.up, &each.down), std::pair(&each.down, &each.up)}) {
          short wanted = 0;
          if (!in->ended && in->held.size() < kHeldMax) wanted |= POLLIN;
          if (!out->held.empty()) wanted |= POLLOUT;
          // An ended stream would be reported as readable or hung up for ever.
          waits.push_back({wanted ? in->from : -1, wanted, 0});
        }
      }
    }
    ::poll(waits.data(), waits.size(), -1);
    if (waits[0].revents & POLLIN) {
      eventfd_t value = 0;
      ::eventfd_read(wake_.get(), &value);
    }
    if (cut_.exchange(false, std::memory_order_acq_rel)) {
      connections.clear();
      continue;
    }
    size_t index = 2;
    if (!stalled) {
      for (Connection& each : connections) {
        const short client = waits[index].revents;
        const short server = waits[index + 1].revents;
        index += 2;
        constexpr short kBroken = POLLERR | POLLHUP;
        Move(each, each.up, client & (POLLIN | kBroken), server & (POLLOUT | kBroken));
        Move(each, each.down, server & (POLLIN | kBroken), client & (POLLOUT | kBroken));
      }
      connections.remove_if([](const Connection& each) { return each.dead; });
    }
    if (waits[1].revents & POLLIN) Accept(connections);
  }
}

}  // namespace moonpool::transport::conformance
