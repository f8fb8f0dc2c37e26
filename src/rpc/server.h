#pragma once

// The serving side of RPC: named methods, called by any number of peers over TCP. One event thread
// (mp-rpc-serve) accepts, reads and writes; handlers run on worker threads (mp-rpc-work) behind a
// bounded queue.
//
// 1. A peer hurts only itself: bytes that are no frame, a frame over the bound, a handshake or a
//    frame that does not finish in time, and replies that are not read each close that connection.
// 2. Connections are bounded. At the bound the oldest one that has not finished its handshake makes
//    room; if there is none, the new one is closed.
// 3. A request that finds the queue full is answered with kAgain; one whose deadline passed while
//    it waited is answered with kTimedOut and not run. An unknown method is kUnsupported.
//
// Not responsible for: encoding, authentication, order (requests of one connection run
// concurrently).
//
// Threads: thread-safe, but Handle is for before Start. Handlers are called by several threads at
// once; an exception that leaves one becomes kInternal. Ownership: clock and log outlive the server.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "rpc/frame.h"

namespace moonpool::rpc {

struct ServerOptions {
  std::string bind_host{};  // numeric address; empty: all
  uint16_t port = 0;        // 0: the kernel picks
  size_t connections_max = 4096;
  size_t frame_bytes_max = kFrameBytesMax;
  // Bytes received and not handled, or not sent yet, of all connections together. Whoever exceeds
  // it is closed. Eight frames of the largest size.
  size_t buffered_bytes_max = 8 * kFrameBytesMax;
  int work_threads = 4;
  // Requests waiting for a worker: at 10 us each, 10 ms of work for one thread.
  size_t queue_max = 1024;
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration frame_timeout = std::chrono::seconds(60);  // from a frame's first byte to its last
  Duration idle_timeout = std::chrono::minutes(10);
  VersionRange versions = kVersions;  // others in tests only
};

// Who calls, until when, and whether it still matters.
struct CallContext {
  std::string peer;       // "10.0.0.7:41234", for messages
  std::string peer_host;  // "10.0.0.7"
  Time deadline = kNever;
  std::stop_token stop;  // requested when the caller is gone or the server closes

  bool cancelled() const { return stop.stop_requested(); }
};

struct ServerMetrics {
  uint64_t connections_open = 0;
  uint64_t connections_accepted = 0;
  uint64_t connections_evicted = 0;   // rule 2
  uint64_t connections_rejected = 0;  // rule 1, and refused at the bound
  uint64_t requests = 0;
  uint64_t requests_refused = 0;  // rule 3
};

class Server {
 public:
  using Handler = std::function<Result<std::string>(const CallContext&, std::string_view request)>;

  // Binds and listens; nothing is accepted before Start.
  static Result<std::unique_ptr<Server>> Create(const Clock& clock, Logger* log,
                                                const ServerOptions& options);
  ~Server();  // Close; waits for handlers
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Requires: before Start; the name is not empty, kMethodBytesMax long at most, and not taken.
  void Handle(std::string method, Handler handler);
  Status Start();
  uint16_t port() const;

  // Stops accepting, closes every connection and asks the handlers to stop. Idempotent. Returns
  // within 1 s; a handler that does not heed its stop token by then is waited for by the
  // destructor.
  void Close();

  ServerMetrics Metrics() const;

 private:
  struct State;

 public:
  explicit Server(std::unique_ptr<State> state);  // for Create

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::rpc
