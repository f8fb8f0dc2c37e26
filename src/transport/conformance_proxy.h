#pragma once

// What stands between two transports, or in place of one, to misbehave: listeners that never answer or
// answer garbage, and a proxy that stalls, cuts and corrupts. Private to the suite.
//
// Threads: Proxy and GarbageServer run a thread of their own; their methods are thread-safe.

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/thread.h"

namespace moonpool::transport::conformance {

// A bound TCP socket; the kernel picks the port. While it does not listen, connecting is refused.
class Listener {
 public:
  explicit Listener(const std::string& host);
  void Listen();  // from now on the kernel completes connections; nobody accepts them
  uint16_t port() const { return port_; }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  uint16_t port_ = 0;
};

// A blocking TCP connection; invalid when refused.
UniqueFd Connect(const std::string& host, uint16_t port);

// Accepts, sends random bytes without end to each, reads nothing.
class GarbageServer {
 public:
  GarbageServer(const std::string& host, uint64_t seed);
  ~GarbageServer();
  uint16_t port() const { return listener_.port(); }

 private:
  Listener listener_;
  UniqueFd wake_;
  Thread thread_;
};

// Forwards between whoever connects to port() and the target.
class Proxy {
 public:
  Proxy(const std::string& host, uint16_t target_port);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  uint16_t port() const { return listener_.port(); }
  // Holds back every byte, in both directions, or lets them go on.
  void SetStalled(bool stalled);
  // Closes every connection.
  void CutAll();
  // Flips a bit of the byte that is `ahead` bytes ahead of what has passed; once.
  void CorruptAt(uint64_t ahead);
  uint64_t forwarded() const { return forwarded_.load(std::memory_order_relaxed); }

 private:
  struct Stream {  // one direction of a connection
    int from = -1;
    int to = -1;
    std::string held;  // read and not yet written, at most kHeldMax
    bool ended = false;
  };
  struct Connection {
    UniqueFd client;
    UniqueFd server;
    Stream up;
    Stream down;
    bool dead = false;
  };
  static constexpr size_t kHeldMax = size_t{256} * 1024;

  void Run(const std::stop_token& stop);
  void Accept(std::list<Connection>& connections);
  void Move(Connection& connection, Stream& stream, bool readable, bool writable);
  void Wake();

  const std::string host_;
  const uint16_t target_port_;
  Listener listener_;
  UniqueFd wake_;
  // Written by the test, read by the proxy's thread after the wake descriptor.
  std::atomic<bool> stalled_{false};
  std::atomic<bool> cut_{false};
  std::atomic<uint64_t> corrupt_at_{~uint64_t{0}};  // in forwarded bytes
  std::atomic<uint64_t> forwarded_{0};
  Thread thread_;
};

}  // namespace moonpool::transport::conformance
