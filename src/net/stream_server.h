#pragma once

// StreamServer: the part that every TCP server here shares. One event thread accepts connections,
// hands the bytes received to the connection's Session (a protocol's state machine), and sends what
// sessions and other threads give it. It bounds the connections, the bytes buffered and the time
// that a peer may take.
//
// 1. Connections never exceed connections_max: at the bound the oldest in kHandshake makes
//    room, else the new one is closed.
// 2. A connection may stay in each phase for the phase's timeout, counted from its entry (kIdle and
//    kSending: from the last progress); then it is closed. kBusy has no limit: the peer waits for
//    us.
// 3. Input that the session leaves and output not yet sent never exceed buffered_bytes_max,
//    counted over all connections: the one that would exceed it is closed.
//
// Not responsible for: what the bytes mean, worker threads (net/work_pool.h).
//
// Threads: StreamServer is thread-safe; Sessions are called on the event thread alone, and made and
// destroyed there.

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
#include "net/address.h"

namespace moonpool::net {

enum class SessionPhase : uint8_t {
  kHandshake,  // has not yet proved to be one of ours: first to go
  kIdle,       // between requests
  kReceiving,  // in the middle of a request
  kBusy,       // requests are being worked on
  // Set by the server, not by sessions:
  kSending,  // output waits for the peer to read
  kClosing   // all is sent; the peer gets a second to close first, so that it sees the last reply
};
inline constexpr size_t kSessionPhases = 6;

class Session {
 public:
  virtual ~Session() = default;

  // Looks at the bytes received and not yet consumed, and returns how many it consumed now. Called
  // when there are new ones and after OnReply. A failure closes the connection once what was given
  // to Send has been sent.
  virtual Result<size_t> OnBytes(std::string_view bytes) = 0;

  // A reply (StreamServer::Send with `reply`) was given to this connection.
  virtual void OnReply() = 0;

  virtual SessionPhase phase() const = 0;

  // False: nothing more is read from the peer for now.
  virtual bool wants_bytes() const = 0;

  // The peer has closed its sending side. True: the connection stays until the session is not busy
  // and all is sent.
  virtual bool StaysAfterEof() const = 0;
};

// What a session knows of its connection.
struct SessionContext {
  uint64_t id = 0;  // for Send; never used twice
  Endpoint peer;
  std::stop_token stop;  // requested when the connection is closed
};

struct StreamServerOptions {
  std::string bind_host{};  // numeric address; empty: all
  uint16_t port = 0;        // 0: the kernel picks
  std::string thread_name{};
  size_t connections_max = 4096;
  size_t buffered_bytes_max = 512u << 20;
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration idle_timeout = std::chrono::minutes(10);
  Duration receive_timeout = std::chrono::seconds(60);
  Duration send_timeout = std::chrono::seconds(30);
  // Called on the event thread, at least every `tick` while it runs. Zero: never.
  Duration tick{0};
  std::function<void(Time)> on_tick{};
};

struct StreamServerMetrics {
  uint64_t connections_open = 0;
  uint64_t connections_accepted = 0;
  uint64_t connections_evicted = 0;   // in rule 1, to make room
  uint64_t connections_rejected = 0;  // by the session, or for lack of room, time or memory
};

class StreamServer {
 public:
  using MakeSession = std::function<std::unique_ptr<Session>(const SessionContext&)>;
  struct Output {
    std::string bytes{};
    bool reply = false;       // calls Session::OnReply
    bool then_close = false;  // closes the connection once the bytes are sent
  };

  // Binds and listens; nothing is accepted before Start.
  static Result<std::unique_ptr<StreamServer>> Create(const Clock& clock, Logger* log,
                                                      const StreamServerOptions& options);
  ~StreamServer();  // Close
  StreamServer(const StreamServer&) = delete;
  StreamServer& operator=(const StreamServer&) = delete;

  // Requires: called once.
  void Start(MakeSession make_session);
  uint16_t port() const;

  // Queues output for a connection; dropped if the connection is gone.
  void Send(uint64_t id, Output output);

  // Closes the listener and all connections, and joins the event thread. Idempotent.
  void Close();

  StreamServerMetrics Metrics() const;

 private:
  class Loop;

 public:
  explicit StreamServer(std::unique_ptr<Loop> loop);  // for Create

 private:
  const std::unique_ptr<Loop> loop_;
};

}  // namespace moonpool::net
