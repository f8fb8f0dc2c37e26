#pragma once

// The caller's side of RPC: a request to a method of the peer at "host:port", and its reply. One
// connection per peer, opened on demand, kept and shared by all calls to it; their requests are
// pipelined and replies may come in any order. A connection that the peer has closed in the
// meantime is replaced before the request is sent; a request is never sent twice.
//
// Not responsible for: retrying (a request that was sent may have been carried out), encoding
// (payloads are opaque), bulk data.
//
// Threads: thread-safe; calls block their own thread, and the client has none (names are looked up
// on mp-resolve threads). Ownership: clock and log outlive the client.
//
// Errors carry peer, phase and cause in the message. A code that the peer's handler returned comes
// back unchanged, with CallInfo::answered. Otherwise: kInvalidArgument (the address, or a request
// over the bound), kUnavailable (name unknown, connection refused, reset, closed by the peer),
// kTimedOut, kUnsupported (another protocol version: the message names both), kCorrupt (the peer
// speaks something else), kExhausted (no descriptors or ports here, or every pooled connection is
// in use), kCancelled (Close).
//
//   rpc::Client client(clock);
//   auto reply = client.Call("10.0.0.7:9000", "segment.get", request, After(clock.Now(), 3s));

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "rpc/frame.h"

namespace moonpool::rpc {

// Where a call failed. kNone: it did not, or the peer itself answered with the error.
enum class FailurePhase : uint8_t {
  kNone = 0,
  kResolve = 1,
  kConnect = 2,
  kHandshake = 3,
  kData = 4
};
std::string_view FailurePhaseName(FailurePhase phase);

struct ClientOptions {
  size_t connections_max = 256;  // idle ones beyond it are closed, least recently used first
  Duration idle_max = std::chrono::minutes(2);            // less than the server's idle timeout
  size_t frame_bytes_max = kFrameBytesMax;                // largest request and reply
  Duration dead_peer_timeout = std::chrono::seconds(10);  // keep-alive and TCP_USER_TIMEOUT
  VersionRange versions = kVersions;                      // others in tests only
};

// What happened, besides the reply.
struct CallInfo {
  std::string peer_host;  // numeric address of the connection that was used; empty: never connected
  FailurePhase phase = FailurePhase::kNone;
  bool answered = false;  // the peer's handler ran (or was refused by the peer's server)
};

struct Request {
  std::string host_port;
  std::string_view method{};
  std::string_view payload{};
  Time deadline = kNever;
};

class Client {
 public:
  explicit Client(const Clock& clock, Logger* log = nullptr, const ClientOptions& options = {});
  ~Client();  // Close
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Result<std::string> Call(const Request& request, CallInfo* info = nullptr);
  Result<std::string> Call(const std::string& host_port, std::string_view method,
                           std::string_view payload, Time deadline) {
    return Call(Request{host_port, method, payload, deadline});
  }

  // Closes the pooled connection to a peer, e.g. one known to have gone. Its calls end with
  // kUnavailable.
  void Disconnect(const std::string& host_port);

  // Ends all calls, the present and the later ones, with kCancelled, and closes all connections.
  // Idempotent; returns when no call is in progress.
  void Close();

  size_t connections() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::rpc
