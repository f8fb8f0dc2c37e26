#pragma once

// Lane of the tcp transport: an epoll descriptor and a Link for each peer that was posted to.
//
// While slices are under way on one or two links Poll asks their sockets directly, which costs one
// system call where asking epoll first costs two; with more it asks epoll, so that its cost does
// not grow with the peers.
//
// Threads: thread-bound.

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "transport/tcp/link.h"
#include "transport/tcp/shared.h"
#include "transport/transport.h"

namespace moonpool::tcp {

class Lane final : public transport::Lane {
 public:
  static Result<std::unique_ptr<Lane>> Create(Shared& shared);

  size_t Post(transport::Peer& peer, std::span<const transport::Slice> slices) override;
  size_t Poll(std::span<transport::Completion> out, Time now) override;
  void Cancel(uint64_t cookie) override;
  void Detach(transport::Peer& peer) override;
  int event_fd() const override { return epoll_.get(); }
  Time wake_by() const override;
  size_t in_flight() const override { return in_flight_; }

 private:
  explicit Lane(Shared& shared, UniqueFd epoll);
  Link& LinkTo(const std::shared_ptr<PeerState>& peer);
  bool PollDirectly(Time now, size_t busy);
  void PollByEpoll(Time now);
  void DetachAll(Time now);
  bool DropClosedPeers();
  size_t Deliver(std::span<transport::Completion> out);

  UniqueFd epoll_;
  LaneContext context_;
  std::unordered_map<const PeerState*, std::unique_ptr<Link>> by_peer_;
  std::vector<Link*> links_;
  size_t in_flight_ = 0;
  size_t delivered_ = 0;  // of context_.done
  uint32_t idle_polls_ = 0;
  bool closed_ = false;
  uint64_t peers_closed_ = 0;
};

}  // namespace moonpool::tcp
