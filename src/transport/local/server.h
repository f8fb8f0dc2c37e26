#pragma once

// The owner's side: accepts connections on an abstract socket, proves who connects, hands out the
// descriptors of the region board and of arenas, and pulls what peers want to write here.
//
// Each connection belongs to one serving thread. A connection is closed by its thread between two
// steps, never within one, or by the end of the process: so a peer that sees the end of the
// connection knows that nothing is stored for it any more.
//
// Bounds: connections_max connections, kHandshakeMax for a handshake, kArenasMax mappings per
// connection, one request at a time per connection (the rest waits in the socket's buffer).
//
// Threads: thread-safe. Ownership: joins its threads when destroyed.

#include <atomic>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/local/identity.h"
#include "transport/transport.h"

namespace moonpool::local {

inline constexpr Duration kHandshakeMax = std::chrono::seconds(5);
inline constexpr size_t kArenasMax = 256;

struct Counters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> slices_served{0};
  std::atomic<uint64_t> requests_refused{0};
  std::atomic<uint64_t> connections_open{0};
  std::atomic<uint64_t> connections_rejected{0};
};

class ServingThread;  // server.cc

class Server {
 public:
  struct Parts {
    const transport::Environment& env;
    const transport::TransportOptions& options;
    Counters& counters;
    Cell cell;          // ours
    int board_fd = -1;  // of our region board, read-only
  };
  // `parts` and what it refers to outlive the server.
  static Result<std::unique_ptr<Server>> Start(const Parts& parts, const Token& name);
  explicit Server(const Parts& parts);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Closes every connection and joins the threads; at most one step later nothing is stored for any
  // peer. Idempotent, not concurrent.
  void Stop();

 private:
  friend class ServingThread;
  const Parts parts_;
  UniqueFd listener_;
  std::atomic<uint32_t> served_{0};  // connections of all threads
  std::atomic<uint32_t> next_{0};    // which thread gets the next one
  std::vector<std::unique_ptr<ServingThread>> threads_;
};

}  // namespace moonpool::local
