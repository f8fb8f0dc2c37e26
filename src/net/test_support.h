#pragma once

// Vocabulary of the tests of net, rpc, http and registry: patience, raw peers, polling for a
// condition. Only for tests.

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "net/address.h"
#include "net/socket.h"
#include "testing/patience.h"

namespace moonpool::net::testing {

using moonpool::testing::Patience;

inline Time Soon(Duration usual = std::chrono::seconds(10)) {
  return After(BootClock::now(), Patience(usual));
}

inline const Clock& RealClock() {
  static const SystemClock kClock;  // has no state
  return kClock;
}

// Waits, by poll(2) with no descriptor, until `condition` holds; false if it never does.
inline bool Eventually(const std::function<bool()>& condition) {
  const Time until = Soon();
  while (!condition()) {
    if (BootClock::now() >= until) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

// A TCP client without a protocol.
class RawPeer {
 public:
  explicit RawPeer(uint16_t port) {
    const Endpoint to = *NumericEndpoint("127.0.0.1", port);
    auto fd = Connect(RealClock(), {&to, 1}, Soon());
    if (fd.ok()) fd_ = std::move(fd).value();
  }
  explicit RawPeer(UniqueFd fd) : fd_(std::move(fd)) {}

  bool connected() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EAGAIN || !WaitFor(RealClock(), fd_.get(), POLLOUT, Soon()).ok()) {
        return false;
      }
    }
    return true;
  }
  // What arrives until there are `size` bytes or the connection ends.
  std::string Receive(size_t size) {
    std::string out;
    while (out.size() < size) {
      if (!WaitFor(RealClock(), fd_.get(), POLLIN, Soon()).ok()) return out + "<timed out>";
      char scratch[4096];
      const size_t room = std::min(sizeof(scratch), size - out.size());
      const ssize_t got = ::recv(fd_.get(), scratch, room, 0);
      if (got > 0) out.append(scratch, static_cast<size_t>(got));
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
    }
    return out;
  }
  std::string ReceiveAll() { return Receive(SIZE_MAX); }
  // True when the other side ends the connection without another byte.
  bool EndsSilently() { return Receive(1).empty(); }

 private:
  UniqueFd fd_;
};

// A listening socket without a protocol.
class RawListener {
 public:
  RawListener() : fd_(Listen("127.0.0.1", 0).value()) {}
  uint16_t port() const { return LocalPort(fd_.get()); }
  std::string host_port() const { return HostPort{"127.0.0.1", port()}.ToString(); }
  RawPeer AcceptOne() {
    if (!WaitFor(RealClock(), fd_.get(), POLLIN, Soon()).ok()) return RawPeer(UniqueFd());
    auto fd = Accept(fd_.get());
    return RawPeer(fd.ok() ? std::move(fd).value() : UniqueFd());
  }

 private:
  UniqueFd fd_;
};

// A port that refuses: bound, so that nobody else gets it, and not listening.
class RefusedPort {
 public:
  RefusedPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const Endpoint any = *NumericEndpoint("127.0.0.1", 0);
    bound_ = ::bind(fd_.get(), any.data(), any.size()) == 0;
  }
  bool bound() const { return bound_; }
  uint16_t port() const { return LocalPort(fd_.get()); }
  std::string host_port() const { return HostPort{"127.0.0.1", port()}.ToString(); }

 private:
  UniqueFd fd_;
  bool bound_ = false;
};

inline bool HasIpv6() { return Listen("::1", 0).ok(); }

}  // namespace moonpool::net::testing
