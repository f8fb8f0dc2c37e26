#pragma once

// The lane of the local transport: one poller over the links to its peers. Reads run inside Poll,
// at most kPollBytes per call and peers in turn; writes are handed to their owners.
//
// Threads: thread-bound. Ownership: destroyed before its transport.

#include <atomic>
#include <memory>
#include <vector>

#include "transport/local/link.h"
#include "transport/transport.h"

namespace moonpool::local {

class LocalLane final : public transport::Lane {
 public:
  struct Parts {
    const transport::Environment& env;
    Counters& counters;
    const Self& self;
    const std::atomic<bool>& closing;  // the transport has been closed
    int closing_fd;                    // readable then
  };
  static Result<std::unique_ptr<transport::Lane>> Create(const Parts& parts);
  LocalLane(const Parts& parts, UniqueFd poller);
  ~LocalLane() override;

  size_t Post(transport::Peer& peer, std::span<const transport::Slice> slices) override;
  size_t Poll(std::span<transport::Completion> out, Time now) override;
  void Cancel(uint64_t cookie) override;
  void Detach(transport::Peer& peer) override;
  int event_fd() const override { return poller_.get(); }
  Time wake_by() const override;
  size_t in_flight() const override;

 private:
  Link* LinkTo(const transport::Peer& peer);
  Link& NewLink(const transport::Peer& peer);
  void HandleEvents(Time now);
  void CloseAll();
  void RunReads();
  void Sweep();
  size_t Harvest(std::span<transport::Completion> out);

  const Parts parts_;
  const UniqueFd poller_;
  LaneRoom room_;
  bool closed_ = false;  // the closing was seen
  size_t turn_ = 0;      // which link reads, or is harvested, first
  // Those that take slices and those that only finish. Few: one for each peer of this host.
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace moonpool::local
