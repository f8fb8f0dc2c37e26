#include "transport/fake/core.h"

#include <algorithm>
#include <cstring>

#include "base/str.h"
#include "memory/region_table.h"

namespace moonpool::fake {
namespace {

constexpr uint64_t kMillion = 1'000'000;

Duration TransmitTime(uint64_t bytes, uint64_t bandwidth) {
  return Duration(static_cast<int64_t>(bytes * 1'000'000'000 / std::max<uint64_t>(bandwidth, 1)));
}

Rights Needed(Op op) { return op == Op::kRead ? Rights::kRead : Rights::kWrite; }

}  // namespace

Core::Core(Clock& clock, const NetworkOptions& options)
    : clock_(clock), options_(options), random_(options.seed), map_(options.link) {
  MOONPOOL_CHECK(options_.step_bytes > 0);
}

// --- Nodes

void Core::AddNode(const NodeId& id, memory::RegionTable& regions) {
  MutexLock lock(mutex_);
  Node& node = map_.At(id.node);
  node.incarnation = id.incarnation;
  node.regions = &regions;
  node.silent = false;
  node.frozen = false;
  node.metrics = {};
  Unpark();  // what waited for the one before breaks now
}

void Core::RemoveNode(const NodeId& id, Crash kind) {
  MutexLock lock(mutex_);
  if (Node* node = map_.Live(id.node, id.incarnation)) Remove(*node, kind);
}

void Core::CrashNode(uint64_t name, Crash kind) {
  MutexLock lock(mutex_);
  Node* node = map_.Find(name);
  if (node && node->regions) Remove(*node, kind);
}

void Core::Remove(Node& node, Crash kind) {
  for (LaneState* lane : node.lanes) {
    if (lane->incarnation == node.incarnation) EndAll(*lane, nullptr, Code::kCancelled);
  }
  node.regions = nullptr;
  node.silent = kind == Crash::kMachine;
  node.frozen = false;
  Unpark();
}

Status Core::Reach(const NodeId& from, const NodeId& to) {
  MutexLock lock(mutex_);
  if (map_.Live(from.node, from.incarnation) == nullptr) {
    return Status(Code::kUnavailable, "connect: this transport is closed");
  }
  Node* node = map_.Find(to.node);
  if (map_.Parted(from.node, to.node) || (node && (node->frozen || node->silent))) {
    return Status(Code::kTimedOut, "connect: no answer");
  }
  if (node == nullptr || node->regions == nullptr || node->refusing) {
    return Status(Code::kUnavailable, "connect: refused");
  }
  if (node->incarnation != to.incarnation) {
    return Status(Code::kStale, "handshake: another incarnation answered");
  }
  return Status::Ok();
}

transport::TransportMetrics Core::Metrics(const NodeId& id) const {
  MutexLock lock(mutex_);
  const Node* node = map_.Find(id.node);
  return node == nullptr ? transport::TransportMetrics{} : node->metrics;
}

// --- Lanes

Code Core::Validate(const Slice& slice) const {
  if (slice.pieces.empty() || slice.pieces.size() > options_.slice_pieces_max ||
      slice.keys.empty() || slice.keys.size() > options_.slice_pieces_max) {
    return Code::kInvalidArgument;
  }
  uint64_t sum = 0;
  for (const transport::Piece& piece : slice.pieces) {
    if (piece.size == 0 || piece.key >= slice.keys.size()) return Code::kInvalidArgument;
    sum += piece.size;
  }
  return sum == slice.bytes && sum <= options_.slice_bytes ? Code::kOk : Code::kInvalidArgument;
}

uint32_t Core::TakeFlight() {
  if (free_.empty()) {
    flights_.emplace_back();
    return static_cast<uint32_t>(flights_.size() - 1);
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

size_t Core::Post(LaneState& lane, PeerState& peer, std::span<const Slice> slices) {
  MutexLock lock(mutex_);
  const size_t room =
      options_.lane_slices_max - std::min<size_t>(options_.lane_slices_max, lane.in_flight);
  const size_t count = std::min(room, slices.size());
  const Time now = Now();
  const Link& link = map_.LinkOf(lane.node, peer.node);
  for (const Slice& slice : slices.first(count)) {
    ++lane.in_flight;
    Code code = Validate(slice);
    if (code == Code::kOk && map_.Live(lane.node, lane.incarnation) == nullptr)
      code = Code::kUnavailable;
    if (code != Code::kOk) {
      lane.ready.push_back({slice.cookie, code, Phase::kData});
      continue;
    }
    const uint32_t index = TakeFlight();
    Flight& flight = flights_[index];
    flight = Flight{};
    flight.lane = &lane;
    flight.peer = &peer;
    flight.cookie = slice.cookie;
    flight.deadline = slice.deadline;
    flight.pieces = slice.pieces;
    flight.keys = slice.keys;
    flight.bytes = slice.bytes;
    flight.op = slice.op;
    flight.stage = Stage::kRequest;
    lane.flights.push_back(index);
    if (link.loss_ppm > 0 && random_.Chance(link.loss_ppm, kMillion)) {
      flight.breaks_at = random_.Below(slice.bytes + 1);
    }
    flight.corrupt = link.corrupt_ppm > 0 && random_.Chance(link.corrupt_ppm, kMillion);
    Schedule(index, now + link.latency);
  }
  return count;
}

size_t Core::Poll(LaneState& lane, std::span<Completion> out) {
  MutexLock lock(mutex_);
  const Node* node = map_.Find(lane.node);
  if (node && node->frozen && node->incarnation == lane.incarnation) return 0;
  while (RunNext()) {  // what is due, so that a passed wake_by() comes to an end
  }
  const size_t count = std::min(out.size(), lane.ready.size());
  std::copy_n(lane.ready.begin(), count, out.begin());
  lane.ready.erase(lane.ready.begin(), lane.ready.begin() + static_cast<ptrdiff_t>(count));
  lane.in_flight -= count;
  return count;
}

void Core::Cancel(LaneState& lane, uint64_t cookie) {
  MutexLock lock(mutex_);
  for (const uint32_t index : lane.flights) {
    Flight& flight = flights_[index];
    if (flight.cookie != cookie || flight.cancel_at != kNever) continue;
    flight.cancel_at = Now() + map_.LinkOf(lane.node, flight.peer->node).latency;
  }
}

void Core::End(LaneState& lane, const PeerState* peer, Code code) {
  MutexLock lock(mutex_);
  EndAll(lane, peer, code);
}

void Core::EndAll(LaneState& lane, const PeerState* peer, Code code) {
  const std::vector<uint32_t> flights = lane.flights;  // Finish changes it
  for (const uint32_t index : flights) {
    if (peer == nullptr || flights_[index].peer == peer) Finish(index, code);
  }
}

void Core::AddLane(LaneState& lane) {
  MutexLock lock(mutex_);
  map_.At(lane.node).lanes.push_back(&lane);
}

void Core::RemoveLane(LaneState& lane) {
  MutexLock lock(mutex_);
  EndAll(lane, nullptr, Code::kCancelled);
  std::erase(map_.At(lane.node).lanes, &lane);
}

Time Core::WakeBy(const LaneState& lane) const {
  MutexLock lock(mutex_);
  const Node* node = map_.Find(lane.node);
  const bool frozen = node && node->frozen;
  if (frozen || lane.in_flight == 0) return kNever;
  if (!lane.ready.empty()) return Time{};
  return events_.empty() ? kNever : events_.top().at;
}

size_t Core::InFlight(const LaneState& lane) const {
  MutexLock lock(mutex_);
  return lane.in_flight;
}

PeerState Core::Look(const PeerState& peer) const {
  MutexLock lock(mutex_);
  return peer;
}

// --- Events

Time Core::NextEventAt() const {
  MutexLock lock(mutex_);
  return events_.empty() ? kNever : events_.top().at;
}

uint64_t Core::events_run() const {
  MutexLock lock(mutex_);
  return events_run_;
}

void Core::Schedule(uint32_t index, Time at) {
  Flight& flight = flights_[index];
  flight.event = ++next_event_;
  events_.push({std::max(Now(), std::min(at, flight.deadline)), flight.event, index});
}

// The slice waits for a thaw, a healing, or its deadline.
void Core::Park(uint32_t index) {
  Flight& flight = flights_[index];
  flight.event = ++next_event_;
  parked_.push_back({Time{}, flight.event, index});
  if (flight.deadline != kNever) events_.push({flight.deadline, flight.event, index});
}

void Core::Unpark() {
  const std::vector<Event> waiting = std::move(parked_);
  parked_.clear();
  for (const Event& each : waiting) {
    const Flight& flight = flights_[each.flight];
    if (flight.stage != Stage::kFree && flight.event == each.number) Schedule(each.flight, Now());
  }
}

bool Core::Step() {
  MutexLock lock(mutex_);
  return RunNext();
}

bool Core::RunNext() {
  while (!events_.empty() && events_.top().at <= Now()) {
    const Event event = events_.top();
    events_.pop();
    const Flight& flight = flights_[event.flight];
    if (flight.stage == Stage::kFree || flight.event != event.number) continue;  // void
    ++events_run_;
    Run(event.flight);
    return true;
  }
  return false;
}

void Core::Run(uint32_t index) {
  Flight& flight = flights_[index];
  if (Now() >= flight.deadline) return Finish(index, Code::kTimedOut);
  if (flight.stage == Stage::kAnswer) return Finish(index, flight.outcome);
  const uint64_t here = flight.lane->node;
  const uint64_t there = flight.peer->node;
  const Node* initiator = map_.Find(here);
  const Node* owner = map_.Find(there);
  const bool gone = map_.Live(there, flight.peer->incarnation) == nullptr;
  const bool silent = gone && owner && owner->silent;
  const bool frozen = (initiator && initiator->frozen) || (!gone && owner->frozen);
  if (silent || frozen || map_.Parted(here, there)) return Park(index);
  if (gone) return Answer(index, Code::kUnavailable);
  if (Now() >= flight.cancel_at) return Answer(index, Code::kCancelled);
  if (flight.stage == Stage::kRequest) return Arrive(index, *map_.Find(there));
  Move(index, *map_.Find(there));
}

// The request is at the owner: all of it is checked before a byte moves.
void Core::Arrive(uint32_t index, Node& owner) {
  Flight& flight = flights_[index];
  for (const transport::Piece& piece : flight.pieces) {
    const RegionKey& key = flight.keys[piece.key];
    const Code code = owner.regions->Enter(key, piece.remote, piece.size, Needed(flight.op));
    if (code != Code::kOk) {
      ++owner.metrics.requests_refused;
      return Answer(index, code);
    }
    owner.regions->Leave(key);
  }
  flight.stage = Stage::kData;
  ScheduleStep(index);
}

// When the next step's bytes have passed both network cards.
void Core::ScheduleStep(uint32_t index) {
  Flight& flight = flights_[index];
  const uint64_t here = flight.lane->node;
  const uint64_t there = flight.peer->node;
  const uint64_t source = flight.op == Op::kRead ? there : here;
  const uint64_t target = flight.op == Op::kRead ? here : there;
  const Link& link = map_.LinkOf(source, target);
  const uint64_t bytes = std::min<uint64_t>(options_.step_bytes, flight.bytes - flight.moved);
  Node& from = map_.At(source);
  Node& to = map_.At(target);
  const Time starts = std::max({Now(), from.sends_until, to.receives_until});
  const Time ends = starts + TransmitTime(bytes, link.bandwidth);
  from.sends_until = ends;
  to.receives_until = ends;
  Schedule(index, flight.moved == 0 && flight.op == Op::kRead ? ends + link.latency : ends);
}

void Core::Move(uint32_t index, Node& owner) {
  Flight& flight = flights_[index];
  if (const Code code = CopyStep(flight, owner); code != Code::kOk) {
    ++owner.metrics.requests_refused;
    return Answer(index, code);
  }
  // Also after the last byte: then only the answer is lost.
  if (flight.moved >= flight.breaks_at) return Answer(index, Code::kUnavailable);
  if (flight.moved < flight.bytes) return ScheduleStep(index);
  ++owner.metrics.slices_served;
  Node& initiator = map_.At(flight.lane->node);
  for (Node* node : {&owner, &initiator}) {
    if (node->corrupt_next == 0) continue;
    --node->corrupt_next;
    flight.corrupt = true;
    break;
  }
  if (flight.corrupt) {
    Spoil(flight);
    ++initiator.metrics.checksum_errors;
    return Answer(index, Code::kCorrupt);
  }
  Answer(index, Code::kOk);
}

Code Core::CopyStep(Flight& flight, Node& owner) {
  Node& initiator = map_.At(flight.lane->node);
  const bool read = flight.op == Op::kRead;
  uint64_t left = options_.step_bytes;
  while (left > 0 && flight.piece < flight.pieces.size()) {
    const transport::Piece& piece = flight.pieces[flight.piece];
    const RegionKey& key = flight.keys[piece.key];
    const uint64_t size = std::min<uint64_t>(left, piece.size - flight.offset);
    const uint64_t there = piece.remote + flight.offset;
    const Code code = owner.regions->Enter(key, there, size, Needed(flight.op));
    if (code != Code::kOk) return code;
    auto* ours = reinterpret_cast<std::byte*>(piece.local + flight.offset);
    auto* theirs = reinterpret_cast<std::byte*>(there);
    std::memmove(read ? ours : theirs, read ? theirs : ours, size);
    owner.regions->Leave(key);
    (read ? owner : initiator).metrics.bytes_sent += size;
    (read ? initiator : owner).metrics.bytes_received += size;
    left -= size;
    flight.moved += size;
    flight.offset += static_cast<uint32_t>(size);
    if (flight.offset == piece.size) {
      ++flight.piece;
      flight.offset = 0;
    }
  }
  return Code::kOk;
}

// Makes one byte of what arrived wrong. The regions were entered a moment ago under the same lock, so a
// write's owner is asked once more only for the rights.
void Core::Spoil(Flight& flight) {
  const transport::Piece& piece = flight.pieces[random_.Below(flight.pieces.size())];
  const uint64_t offset = random_.Below(piece.size);
  if (flight.op == Op::kRead) {
    *reinterpret_cast<std::byte*>(piece.local + offset) ^= std::byte{0x10};
    return;
  }
  memory::RegionTable& regions = *map_.At(flight.peer->node).regions;
  const RegionKey& key = flight.keys[piece.key];
  if (regions.Enter(key, piece.remote, piece.size, Rights::kWrite) != Code::kOk) return;
  *reinterpret_cast<std::byte*>(piece.remote + offset) ^= std::byte{0x10};
  regions.Leave(key);
}

// The owner has finished with the slice; the initiator hears of it a latency later.
void Core::Answer(uint32_t index, Code outcome) {
  Flight& flight = flights_[index];
  flight.stage = Stage::kAnswer;
  flight.outcome = outcome;
  // The data of a read came with its answer.
  const bool arrived = flight.op == Op::kRead && outcome == Code::kOk;
  const Duration back = map_.LinkOf(flight.peer->node, flight.lane->node).latency;
  Schedule(index, arrived ? Now() : Now() + back);
}

void Core::Finish(uint32_t index, Code code) {
  Flight& flight = flights_[index];
  const Phase phase = code == Code::kOk ? Phase::kNone : Phase::kData;
  flight.lane->ready.push_back({flight.cookie, code, phase});
  if (code != Code::kOk) {
    flight.peer->code = code;
    flight.peer->phase = phase;
  }
  std::erase(flight.lane->flights, index);
  flight.stage = Stage::kFree;
  free_.push_back(index);
}

}  // namespace moonpool::fake
