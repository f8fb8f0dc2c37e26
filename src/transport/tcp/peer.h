#pragma once

// A remote process as this transport reaches it, and the blocking handshake that proves who it is.
//
// PeerState is what a Peer and the lanes' links to it share (shared_ptr): it outlives whichever
// goes first. The connection that OpenPeer made is kept in it for the first lane that wants one.
//
// Threads: thread-safe.

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/mutex.h"
#include "net/address.h"
#include "transport/tcp/clock_relation.h"
#include "transport/tcp/shared.h"
#include "transport/transport.h"

namespace moonpool::tcp {

// A connection whose handshake is over.
struct OpenConnection {
  UniqueFd fd;
  uint64_t id = 0;  // the owner's name for it
  ClockRelation clock;
};

class PeerState {
 public:
  PeerState(const transport::PeerOptions& options, const net::Endpoint& where)
      : name(options.name), id(options.id), endpoint(where) {}

  const std::string name;
  const transport::NodeId id;
  const net::Endpoint endpoint;
  std::atomic<bool> closed{false};  // its Peer was destroyed

  void SetError(Status status);
  Status last_error() const;
  void PutSpare(OpenConnection connection);
  std::optional<OpenConnection> TakeSpare();

 private:
  mutable Mutex mutex_;
  Status last_error_ MOONPOOL_GUARDED_BY(mutex_);
  std::optional<OpenConnection> spare_ MOONPOOL_GUARDED_BY(mutex_);
};

class Peer final : public transport::Peer {
 public:
  Peer(Shared& shared, std::shared_ptr<PeerState> state)
      : shared_(shared), state_(std::move(state)) {}
  ~Peer() override;
  Status last_error() const override { return state_->last_error(); }
  const std::shared_ptr<PeerState>& state() const { return state_; }

 private:
  Shared& shared_;
  const std::shared_ptr<PeerState> state_;
};

// Connects, shakes hands and leaves the connection as the state's spare. The message names peer,
// address and phase. kUnavailable, kTimedOut, kStale (another process answers), kUnsupported
// (versions), kCorrupt (what answers is none of us), kCancelled (the transport was closed meanwhile).
Status OpenAndCheck(Shared& shared, PeerState& peer, Time deadline);

// The verdict on a welcome: ok, or why not, with the codes above.
Status CheckWelcome(const Welcome& welcome, transport::NodeId expected);

}  // namespace moonpool::tcp
