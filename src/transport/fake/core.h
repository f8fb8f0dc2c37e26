#pragma once

// Core: the state machine behind Network: nodes, slices in flight, events. Private to this folder.
//
// Every slice in flight has exactly one event: its next action, or its deadline when that comes first. An
// event whose number is no longer the slice's is void.
//
//   request travels -> owner checks -> step, step, … -> answer travels -> completion waits for Poll
//
// Threads: thread-safe; the mutex is held while bytes are copied and while the owner's RegionTable is asked
// (RegionTable::Enter takes no lock, and nobody waits for this mutex while inside a region).

#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "transport/fake/map.h"
#include "transport/fake/network.h"
#include "transport/transport.h"

namespace moonpool::fake {

using transport::NodeId;
using transport::Op;
using transport::Phase;
using transport::Slice;

// What a Peer object is to the core. Guarded by the core's mutex.
struct PeerState {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  Code code = Code::kOk;  // of the last failure
  Phase phase = Phase::kNone;
};

class Core {
 public:
  Core(Clock& clock, const NetworkOptions& options);

  const NetworkOptions& options() const { return options_; }

  // Nodes.
  void AddNode(const NodeId& id, memory::RegionTable& regions);
  void RemoveNode(const NodeId& id, Crash kind);  // no-op for another incarnation than the present
  void CrashNode(uint64_t node, Crash kind);
  Status Reach(const NodeId& from, const NodeId& to);
  transport::TransportMetrics Metrics(const NodeId& id) const;

  // Lanes.
  void AddLane(LaneState& lane);
  void RemoveLane(LaneState& lane);
  size_t Post(LaneState& lane, PeerState& peer, std::span<const Slice> slices);
  size_t Poll(LaneState& lane, std::span<Completion> out);
  void Cancel(LaneState& lane, uint64_t cookie);
  // Ends the lane's slices to `peer`, or all of them: they complete with `code`.
  void End(LaneState& lane, const PeerState* peer, Code code);
  Time WakeBy(const LaneState& lane) const;
  size_t InFlight(const LaneState& lane) const;
  PeerState Look(const PeerState& peer) const;

  // Network's calls.
  Time NextEventAt() const;
  bool Step();
  uint64_t events_run() const;
  // Changes nodes or links under the lock; whoever waits for a thaw or a healing looks again.
  template <typename Edit>
  void Change(Edit edit) {
    MutexLock lock(mutex_);
    edit(map_);
    Unpark();
  }

 private:
  enum class Stage : uint8_t { kFree, kRequest, kData, kAnswer };

  struct Flight {
    LaneState* lane = nullptr;
    PeerState* peer = nullptr;
    uint64_t cookie = 0;
    Time deadline = kNever;
    std::span<const transport::Piece> pieces;
    std::span<const RegionKey> keys;
    uint64_t event = 0;                 // number of its one event
    uint64_t breaks_at = ~uint64_t{0};  // the connection breaks after so many bytes
    uint64_t moved = 0;                 // bytes
    uint64_t bytes = 0;
    Time cancel_at = kNever;  // when the owner hears of the cancellation
    uint32_t piece = 0;       // next to move
    uint32_t offset = 0;      // within it
    Op op = Op::kRead;
    Stage stage = Stage::kFree;
    Code outcome = Code::kOk;
    bool corrupt = false;
  };

  struct Event {
    Time at;
    uint64_t number;
    uint32_t flight;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  Time Now() const { return clock_.Now(); }
  void Remove(Node& node, Crash kind) MOONPOOL_REQUIRES(mutex_);
  void EndAll(LaneState& lane, const PeerState* peer, Code code) MOONPOOL_REQUIRES(mutex_);
  uint32_t TakeFlight() MOONPOOL_REQUIRES(mutex_);
  void Schedule(uint32_t index, Time at) MOONPOOL_REQUIRES(mutex_);
  void Park(uint32_t index) MOONPOOL_REQUIRES(mutex_);
  void Unpark() MOONPOOL_REQUIRES(mutex_);
  bool RunNext() MOONPOOL_REQUIRES(mutex_);
  void Run(uint32_t index) MOONPOOL_REQUIRES(mutex_);
  void Arrive(uint32_t index, Node& owner) MOONPOOL_REQUIRES(mutex_);
  void Move(uint32_t index, Node& owner) MOONPOOL_REQUIRES(mutex_);
  Code CopyStep(Flight& flight, Node& owner) MOONPOOL_REQUIRES(mutex_);
  void ScheduleStep(uint32_t index) MOONPOOL_REQUIRES(mutex_);
  void Spoil(Flight& flight) MOONPOOL_REQUIRES(mutex_);
  void Answer(uint32_t index, Code outcome) MOONPOOL_REQUIRES(mutex_);
  void Finish(uint32_t index, Code code) MOONPOOL_REQUIRES(mutex_);
  Code Validate(const Slice& slice) const;

  Clock& clock_;
  const NetworkOptions options_;
  mutable Mutex mutex_;
  Random random_ MOONPOOL_GUARDED_BY(mutex_);
  Map map_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<Flight> flights_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<Event> parked_ MOONPOOL_GUARDED_BY(mutex_);  // wait for a thaw or a healing
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_
      MOONPOOL_GUARDED_BY(mutex_);
  uint64_t next_event_ MOONPOOL_GUARDED_BY(mutex_) = 0;
  uint64_t events_run_ MOONPOOL_GUARDED_BY(mutex_) = 0;
};

}  // namespace moonpool::fake
