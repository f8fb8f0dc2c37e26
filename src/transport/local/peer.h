#pragma once

// A process of this host as we reach it: its board, how its memory is read, and the mappings of its
// arenas, shared by all lanes.
//
// Threads: thread-safe. Ownership: PeerState is shared by the Peer handed to the engine and the
// lanes' links, so that a link outlives the handle until its last completion.

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "transport/local/board.h"
#include "transport/local/identity.h"
#include "transport/local/mapping.h"
#include "transport/local/wire.h"
#include "transport/transport.h"

namespace moonpool::local {

class PeerState {
 public:
  struct Fixed {
    std::string name;
    Address address;
    Origin origin;
    UniqueFd pidfd;  // may be invalid
    std::unique_ptr<BoardView> board;
  };
  explicit PeerState(Fixed fixed) : fixed_(std::move(fixed)) {}

  const Fixed& fixed() const { return fixed_; }
  void Fail(Code code, transport::Phase phase, std::string_view cause);
  Status last_error() const;

  // The mapping of one of its arenas that a lane has, or what `fd` maps (and others then share).
  std::shared_ptr<const Mapping> Find(uint32_t arena) const;
  Result<std::shared_ptr<const Mapping>> Map(uint32_t arena, int fd, uint64_t size);

  // The engine has given up its handle: links without slices may close.
  void Release() { released_.store(true, std::memory_order_release); }
  bool released() const { return released_.load(std::memory_order_acquire); }

 private:
  const Fixed fixed_;
  std::atomic<bool> released_{false};
  mutable Mutex mutex_;
  Status last_error_ MOONPOOL_GUARDED_BY(mutex_);
  // Owned by the links; here only to be found.
  std::map<uint32_t, std::weak_ptr<const Mapping>> arenas_ MOONPOOL_GUARDED_BY(mutex_);
};

class LocalPeer final : public transport::Peer {
 public:
  explicit LocalPeer(std::shared_ptr<PeerState> state) : state_(std::move(state)) {}
  ~LocalPeer() override { state_->Release(); }
  Status last_error() const override { return state_->last_error(); }
  const std::shared_ptr<PeerState>& state() const { return state_; }

 private:
  const std::shared_ptr<PeerState> state_;
};

// Who we are, for a handshake.
struct Self {
  Host host;
  transport::NodeId id;
  Cell cell;
};

// Connects, proves that the peer is on this host and the one that is meant, finds out what works.
// `wake` becomes readable when this transport closes. Errors as of Transport::OpenPeer.
Result<std::shared_ptr<PeerState>> OpenPeerState(const Self& self,
                                                 const transport::PeerOptions& options, int wake,
                                                 Time deadline);

// The outcome of a greeting, for the one who connected: ok, or the error of the contract.
Status CheckWelcome(const Welcome& welcome, const transport::NodeId& expected);

}  // namespace moonpool::local
