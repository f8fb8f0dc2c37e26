#pragma once

// A small HTTP/1.1 server for administration, metrics and the registry. One event thread (mp-http)
// accepts, reads and writes; handlers run on worker threads (mp-http-work) behind a bounded queue.
//
// Bounds: header 16 KiB, body body_bytes_max, connections connections_max (the oldest that has not
// completed a request makes room), a request must be complete within request_timeout of its first
// byte, and the first one within that of the connection (a slow sender costs one connection and
// nothing else). A full queue answers 503. One request of a connection is worked on at a time.
//
// Not responsible for: TLS, authentication, compression, files.
//
// Threads: thread-safe, but Handle is for before Start. Handlers are called by several threads at
// once; an exception that leaves one becomes 500. Ownership: clock and log outlive the server.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "http/message.h"

namespace moonpool::http {

struct ServerOptions {
  std::string bind_host{};  // numeric address; empty: all
  uint16_t port = 0;        // 0: the kernel picks
  size_t connections_max = 1024;
  size_t body_bytes_max = kBodyBytesMax;
  size_t buffered_bytes_max = 4 * kBodyBytesMax;  // of all connections together
  int work_threads = 2;
  size_t queue_max = 1024;  // requests waiting for a worker: one for each connection
  Duration request_timeout = std::chrono::seconds(20);
  Duration idle_timeout = std::chrono::seconds(75);
  // Called on the event thread, about every `tick` while the server runs. Zero: never.
  Duration tick{0};
  std::function<void(Time)> on_tick{};
};

class Server {
 public:
  using Handler = std::function<Response(const Request&)>;

  // Binds and listens; nothing is accepted before Start.
  static Result<std::unique_ptr<Server>> Create(const Clock& clock, Logger* log,
                                                const ServerOptions& options);
  ~Server();  // Close; waits for handlers
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // `path` is exact, or ends in "/*" and takes everything below it; the longest match wins. HEAD is
  // answered by the handler of GET. Another method of a known path is 405, an unknown path 404.
  // Requires: before Start; not taken.
  void Handle(const std::string& method, const std::string& path, Handler handler);
  Status Start();
  uint16_t port() const;

  // Idempotent; within 1 s. A handler that runs longer is waited for by the destructor.
  void Close();

 private:
  struct State;

 public:
  explicit Server(std::unique_ptr<State> state);  // for Create

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::http
