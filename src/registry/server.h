#pragma once

// The registry's server: names and values over HTTP, with leases; nothing is kept on disk (owners
// put their entries back when it returns). It also answers Mooncake's plain metadata protocol at
// /metadata?key=…, over the same entries, without leases; there, unlike Mooncake's own, it lets a
// restarted process replace its record.
//
// Bounds: TableBounds, and those of http::Server. Threads: thread-safe; has those of http::Server
// (mp-http, mp-http-work). Ownership: clock and log outlive it.

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "registry/table.h"

namespace moonpool::registry {

struct ServerOptions {
  std::string bind_host{};  // numeric address; empty: all
  uint16_t port = 0;        // 0: the kernel picks
  TableBounds bounds{};
};

class Server {
 public:
  // Binds and listens; nothing is accepted before Start.
  static Result<std::unique_ptr<Server>> Create(const Clock& clock, Logger* log,
                                                const ServerOptions& options);
  ~Server();  // Close
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Status Start();
  uint16_t port() const;
  size_t entries() const;
  // Idempotent; within 1 s.
  void Close();

 private:
  struct State;

 public:
  explicit Server(std::unique_ptr<State> state);  // for Create

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::registry
