#include "transport/fake/node.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/str.h"
#include "memory/region_table.h"

namespace moonpool::fake {
namespace {

constexpr uint8_t kAddressVersion = 1;

class NodePeer final : public transport::Peer {
 public:
  NodePeer(Core& core, std::string name, const NodeId& id) : core_(core), name_(std::move(name)) {
    state_.node = id.node;
    state_.incarnation = id.incarnation;
  }
  PeerState& state() { return state_; }
  Status last_error() const override {
    const PeerState now = core_.Look(state_);
    if (now.code == Code::kOk) return Status::Ok();
    return Status(now.code,
                  Str("fake ", name_, ": ", PhaseName(now.phase), ": ", CodeName(now.code)));
  }

 private:
  Core& core_;
  const std::string name_;
  PeerState state_;  // guarded by the core's mutex
};

class NodeLane final : public transport::Lane {
 public:
  NodeLane(Core& core, const NodeId& self) : core_(core) {
    state_.node = self.node;
    state_.incarnation = self.incarnation;
    core_.AddLane(state_);
  }
  ~NodeLane() override { core_.RemoveLane(state_); }

  size_t Post(transport::Peer& peer, std::span<const Slice> slices) override {
    return core_.Post(state_, static_cast<NodePeer&>(peer).state(), slices);
  }
  size_t Poll(std::span<Completion> out, Time) override { return core_.Poll(state_, out); }
  void Cancel(uint64_t cookie) override { core_.Cancel(state_, cookie); }
  void Detach(transport::Peer& peer) override {
    core_.End(state_, &static_cast<NodePeer&>(peer).state(), Code::kCancelled);
  }
  int event_fd() const override { return -1; }
  Time wake_by() const override { return core_.WakeBy(state_); }
  size_t in_flight() const override { return core_.InFlight(state_); }

 private:
  Core& core_;
  LaneState state_;  // guarded by the core's mutex
};

class NodeTransport final : public transport::Transport {
 public:
  NodeTransport(Core& core, const transport::Environment& environment)
      : core_(core), self_(environment.self) {
    capabilities_.checksum = true;
    capabilities_.slice_bytes = core.options().slice_bytes;
    capabilities_.slice_pieces_max = core.options().slice_pieces_max;
    capabilities_.bandwidth_estimate = core.options().link.bandwidth;
    capabilities_.latency_estimate = core.options().link.latency;
    core_.AddNode(self_, environment.regions);
  }
  ~NodeTransport() override { Close(); }

  std::string_view name() const override { return "fake"; }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string Address() const override {
    ByteWriter out;
    out.Put(kAddressVersion);
    out.Put(self_.node);
    return out.Take();
  }

  Result<std::unique_ptr<transport::Peer>> OpenPeer(const transport::PeerOptions& options,
                                                    Time) override {
    ByteReader in(options.address);
    const auto version = in.Get<uint8_t>();
    const auto node = in.Get<uint64_t>();
    if (!in.Done() || version != kAddressVersion) {
      return Status(Code::kInvalidArgument,
                    Str("fake ", options.name, ": resolve: address of ", options.address.size(),
                        " bytes is not of this transport's version 1"));
    }
    if (node != options.id.node) {
      return Status(Code::kStale, Str("fake ", options.name, ": handshake: another node answered"));
    }
    if (const Status status = core_.Reach(self_, options.id); !status.ok()) {
      return status.WithContext(Str("fake ", options.name));
    }
    return std::unique_ptr<transport::Peer>(
        std::make_unique<NodePeer>(core_, options.name, options.id));
  }

  Result<std::unique_ptr<transport::Lane>> OpenLane() override {
    return std::unique_ptr<transport::Lane>(std::make_unique<NodeLane>(core_, self_));
  }
  void Close() override { core_.RemoveNode(self_, Crash::kProcess); }
  transport::TransportMetrics Metrics() const override { return core_.Metrics(self_); }

 private:
  Core& core_;
  const NodeId self_;
  transport::Capabilities capabilities_;
};

}  // namespace

std::unique_ptr<transport::Transport> MakeTransport(Core& core,
                                                    const transport::Environment& environment) {
  return std::make_unique<NodeTransport>(core, environment);
}

}  // namespace moonpool::fake
