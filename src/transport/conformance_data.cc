#include <algorithm>
#include <cstring>
#include <vector>

#include "base/str.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

constexpr Kind kKinds[] = {Kind::kPlain, Kind::kArena};

void NameCapabilitiesAndAddressAreSane(World& world) {
  Node& node = world.Add("node");
  const Capabilities& can = node.transport().capabilities();
  if (!world.params().ground) {
    EXPECT_EQ(node.transport().name(), world.params().factory.name);
  }
  EXPECT_GE(can.slice_bytes, 4096u);
  EXPECT_LE(can.slice_bytes, 0xffffffffu) << "a piece's size has 32 bits";
  EXPECT_GE(can.slice_pieces_max, 1u);
  EXPECT_GT(can.bandwidth_estimate, 0u);
  EXPECT_GT(can.latency_estimate.count(), 0);
  EXPECT_FALSE(node.transport().Address().empty());
  EXPECT_LE(node.transport().Address().size(), 4096u);
  EXPECT_EQ(node.lane().in_flight(), 0u);
  EXPECT_GE(node.lane().event_fd(), -1);
}

// The range moves, and not one byte around it changes on either side.
void MoveAndLookAround(Pair& pair, Range range) {
  pair.local.Fill(1);
  pair.remote.Fill(2);
  const uint64_t here = range.local - pair.local.address();
  const uint64_t there = range.remote - pair.remote.address();
  ASSERT_EQ(pair.flight.Run(*pair.peer, range), Code::kOk);
  Buffer& from = range.op == Op::kRead ? pair.remote : pair.local;
  Buffer& to = range.op == Op::kRead ? pair.local : pair.remote;
  const uint64_t from_at = range.op == Op::kRead ? there : here;
  const uint64_t to_at = range.op == Op::kRead ? here : there;
  const uint64_t from_seed = range.op == Op::kRead ? 2 : 1;
  const uint64_t to_seed = range.op == Op::kRead ? 1 : 2;
  EXPECT_EQ(from.Errors(from_seed), "") << "the source changed";
  EXPECT_EQ(PatternErrors(to.data() + to_at, range.size, from_seed, from_at), "");
  EXPECT_EQ(PatternErrors(to.data(), to_at, to_seed), "") << "before the target";
  const uint64_t end = to_at + range.size;
  EXPECT_EQ(PatternErrors(to.data() + end, to.size() - end, to_seed, end), "")
      << "after the target";
}

void EverySizeMovesBothWays(World& world) {
  for (const Kind kind : kKinds) {
    Pair pair(world, {.size = 1 << 16, .kind = kind});
    for (const Op op : kOps) {
      for (const uint64_t size :
           {1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 256, 1000, 4095, 4096, 4097, 65536}) {
        const uint64_t most =
            std::min<uint64_t>(size, pair.here.transport().capabilities().slice_bytes);
        SCOPED_TRACE(
            Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op), " size ", most));
        Range range = pair.Whole(op);
        range.size = most;
        MoveAndLookAround(pair, range);
      }
    }
  }
}

void UnalignedRangesMoveBothWays(World& world) {
  Pair pair(world, {.size = 20'000});
  for (const Op op : kOps) {
    for (const auto& [here, there, size] : std::vector<std::array<uint64_t, 3>>{{1, 0, 1},
                                                                                {3, 5, 4091},
                                                                                {7, 4095, 2},
                                                                                {4095, 1, 4097},
                                                                                {13, 11, 4000},
                                                                                {19'999, 0, 1}}) {
      SCOPED_TRACE(
          Str("op ", static_cast<int>(op), " here +", here, " there +", there, " size ", size));
      Range range = pair.Whole(op);
      range.local += here;
      range.remote += there;
      range.size = size;
      MoveAndLookAround(pair, range);
    }
  }
}

void SliceOfTheLargestSizeMoves(World& world) {
  Pair pair(world, {.size = world.Add("probe").transport().capabilities().slice_bytes + 2});
  for (const Op op : kOps) {
    Range range = pair.Whole(op);
    ++range.local;
    ++range.remote;
    range.size -= 2;
    MoveAndLookAround(pair, range);
  }
}

void MebibytesMoveInManySlices(World& world) {
  for (const Kind kind : kKinds) {
    Pair pair(world, {.size = world.params().bulk_bytes + 12'345, .kind = kind});
    for (const Op op : kOps) {
      SCOPED_TRACE(Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op)));
      pair.local.Fill(10);
      pair.remote.Fill(11);
      const size_t slices = pair.flight.Bulk(*pair.peer, pair.Whole(op));
      const size_t before = pair.flight.Count(Code::kOk);
      ASSERT_TRUE(pair.flight.Finish());
      EXPECT_EQ(pair.flight.Count(Code::kOk) - before, slices);
      const uint64_t seed = op == Op::kRead ? 11 : 10;
      EXPECT_EQ(pair.local.Errors(seed), "");
      EXPECT_EQ(pair.remote.Errors(seed), "");
    }
  }
}

// Pieces of odd sizes, in an order of their own on the other side, with gaps that stay as they are.
void PiecesScatterAndGather(World& world) {
  Pair pair(world, {.size = 512 * 300});
  const uint32_t count =
      std::min<uint32_t>(512, pair.here.transport().capabilities().slice_pieces_max);
  for (const Op op : kOps) {
    SCOPED_TRACE(Str("op ", static_cast<int>(op)));
    pair.local.Fill(20);
    pair.remote.Fill(21);
    Request request{pair.peer.get(), op, kNever, {}, {pair.remote.key()}, {}};
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t there = (i * 131) % 512;
      const uint32_t size = std::min<uint32_t>(1 + (i * 37) % 290, 4096 / count + 280);
      request.pieces.push_back(
          {pair.local.address() + i * 300, pair.remote.address() + there * 300, size, 0});
    }
    uint64_t sum = 0;
    for (const Piece& piece : request.pieces) sum += piece.size;
    ASSERT_LE(sum, pair.here.transport().capabilities().slice_bytes);
    const std::vector<Piece> pieces = request.pieces;
    const uint64_t cookie = pair.flight.Add(std::move(request));
    ASSERT_TRUE(pair.flight.Finish());
    ASSERT_EQ(pair.flight.code(cookie), Code::kOk);
    for (const Piece& piece : pieces) {
      const uint64_t here = piece.local - pair.local.address();
      const uint64_t there = piece.remote - pair.remote.address();
      const bool read = op == Op::kRead;
      const std::byte* to = read ? pair.local.data() + here : pair.remote.data() + there;
      ASSERT_EQ(PatternErrors(to, piece.size, read ? 21 : 20, read ? there : here), "");
      ASSERT_EQ(PatternErrors(to + piece.size, 300 - piece.size, read ? 20 : 21,
                              (read ? here : there) + piece.size),
                "")
          << "the gap after a piece";
    }
  }
}

void PiecesOfOneSliceLieInSeveralRegions(World& world) {
  Pair pair(world, {.size = 8 * 512});
  std::vector<std::unique_ptr<Buffer>> remotes;
  for (int i = 0; i < 8; ++i) {
    remotes.push_back(std::make_unique<Buffer>(
        pair.there, BufferOptions{.size = 4096, .kind = i % 2 ? Kind::kArena : Kind::kPlain}));
  }
  for (const Op op : kOps) {
    Request request{pair.peer.get(), op, kNever, {}, {}, {}};
    pair.local.Fill(30);
    for (uint32_t i = 0; i < 8; ++i) {
      remotes[i]->Fill(40 + i);
      request.keys.push_back(remotes[7 - i]->key());
    }
    for (uint32_t i = 0; i < 8; ++i) {
      request.pieces.push_back(
          {pair.local.address() + i * 512, remotes[i]->address() + 100, 400, 7 - i});
    }
    const uint64_t cookie = pair.flight.Add(std::move(request));
    ASSERT_TRUE(pair.flight.Finish());
    ASSERT_EQ(pair.flight.code(cookie), Code::kOk);
    for (uint32_t i = 0; i < 8; ++i) {
      const bool read = op == Op::kRead;
      const std::byte* to = read ? pair.local.data() + i * 512 : remotes[i]->data() + 100;
      EXPECT_EQ(PatternErrors(to, 400, read ? 40 + i : 30, read ? 100 : i * 512), "")
          << "region " << i;
    }
  }
}

void EverySliceCompletesExactlyOnce(World& world) {
  Pair pair(world, {.size = 1 << 16});
  pair.remote.Fill(50);
  constexpr size_t kSlices = 20'000;
  for (size_t i = 0; i < kSlices; ++i) {
    const uint64_t at = (i % 1024) * 64;
    pair.flight.Add({pair.peer.get(),
                     Op::kRead,
                     kNever,
                     {{pair.local.address() + at, pair.remote.address() + at, 64, 0}},
                     {pair.remote.key()},
                     {}});
  }
  ASSERT_TRUE(pair.flight.Finish());  // Flight refuses an unknown or repeated cookie
  EXPECT_EQ(pair.flight.Count(Code::kOk), kSlices);
  EXPECT_EQ(pair.here.lane().in_flight(), 0u);
  EXPECT_EQ(pair.local.Errors(50), "");
}

// Posting without polling never blocks and never loses: what the lane has no room for it leaves.
void PostWithoutPollIsBoundedAndLosesNothing(World& world) {
  Pair pair(world, {.size = 1 << 20});
  pair.local.Fill(60);
  constexpr size_t kSlices = 4096;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < kSlices; ++i) {
    pieces.push_back({pair.local.address() + i * 256, pair.remote.address() + i * 256, 256, 0});
  }
  const std::vector<RegionKey> keys = {pair.remote.key()};
  std::vector<Slice> slices;
  for (size_t i = 0; i < kSlices; ++i) {
    slices.push_back({i, Op::kWrite, kNever, {&pieces[i], 1}, keys, 256});
  }
  size_t accepted = 0;
  size_t completed = 0;
  std::vector<int> seen(kSlices);
  const Time limit = world.In(Patience());
  Lane& lane = pair.here.lane();
  while (completed < kSlices && world.Now() < limit) {
    size_t taken = 0;
    do {  // to the brim
      taken = lane.Post(*pair.peer, std::span(slices).subspan(accepted));
      accepted += taken;
      ASSERT_LE(accepted, kSlices);
    } while (taken > 0 && accepted < kSlices);
    EXPECT_EQ(lane.in_flight(), accepted - completed);
    Completion one[1];  // one at a time must do
    if (lane.Poll(one, world.Now()) == 0) {
      world.Pass(std::chrono::microseconds(100));
      continue;
    }
    EXPECT_EQ(one[0].code, Code::kOk);
    ASSERT_LT(one[0].cookie, kSlices);
    EXPECT_EQ(++seen[one[0].cookie], 1);
    ++completed;
  }
  EXPECT_EQ(completed, kSlices);
  EXPECT_EQ(pair.remote.Errors(60), "");
}

void PollWithNothingInFlightReturnsNothing(World& world) {
  Node& node = world.Add("idle");
  Completion out[4];
  EXPECT_EQ(node.lane().Poll(out, world.Now()), 0u);
  EXPECT_EQ(node.lane().Poll({}, world.Now()), 0u);
  Pair pair(world, {});
  EXPECT_EQ(pair.here.lane().Post(*pair.peer, {}), 0u);
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
  EXPECT_EQ(pair.here.lane().Poll(out, world.Now()), 0u);
}

// A caller that sleeps on the descriptor until wake_by, and for nothing else, gets its completion.
void DescriptorAndWakeTimeTellWhenToPoll(World& world) {
  Pair pair(world, {});
  for (int round = 0; round < 50; ++round) {
    pair.flight.Add({pair.peer.get(),
                     round % 2 ? Op::kRead : Op::kWrite,
                     kNever,
                     {{pair.local.address(), pair.remote.address(), 4096, 0}},
                     {pair.remote.key()},
                     {}});
    const size_t want = pair.flight.completed() + 1;
    while (pair.flight.completed() < want) {
      if (pair.flight.Pump()) continue;
      const Time now = world.Now();
      Lane& lane = pair.here.lane();
      const Time wake = std::min(lane.wake_by(), After(now, Patience()));
      const int fd = lane.event_fd();
      if (wake > now) world.ground().Pass({&fd, 1}, wake - now);
      ASSERT_LT(world.Now() - now, Patience()) << "slept through a completion in round " << round;
    }
  }
}

void LanesOfOneNodeWorkSideBySide(World& world) {
  Pair pair(world, {.size = 1 << 20});
  auto second = pair.here.transport().OpenLane();
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  Buffer other(pair.here, {.size = 1 << 20});
  pair.remote.Fill(70);
  {
    Flight flight(world, pair.here, **second);
    Range range = pair.Whole(Op::kRead);
    pair.flight.Bulk(*pair.peer, range);
    range.local = other.address();
    flight.Bulk(*pair.peer, range);
    pair.flight.Pump();
    EXPECT_TRUE(flight.Finish());
    EXPECT_TRUE(pair.flight.Finish());
  }
  EXPECT_EQ(pair.local.Errors(70), "");
  EXPECT_EQ(other.Errors(70), "");
}

void OneLaneServesManyPeers(World& world) {
  Node& hub = world.Add("hub");
  Flight flight(world, hub);
  std::vector<std::unique_ptr<Buffer>> locals;
  std::vector<std::unique_ptr<Buffer>> remotes;
  std::vector<std::unique_ptr<Peer>> peers;
  for (uint64_t i = 0; i < 6; ++i) {
    Node& node = world.Add(Str("spoke ", i));
    locals.push_back(std::make_unique<Buffer>(hub, BufferOptions{.size = 100'000}));
    remotes.push_back(std::make_unique<Buffer>(node, BufferOptions{.size = 100'000}));
    remotes.back()->Fill(80 + i);
    peers.push_back(hub.Open(node));
    ASSERT_NE(peers.back(), nullptr);
  }
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < peers.size(); ++i) {
      flight.Bulk(*peers[i], {Op::kRead, locals[i]->address(), remotes[i]->address(),
                              remotes[i]->key(), 100'000, kNever});
    }
  }
  ASSERT_TRUE(flight.Finish());
  for (uint64_t i = 0; i < peers.size(); ++i)
    EXPECT_EQ(locals[i]->Errors(80 + i), "") << "peer " << i;
}

void BothSidesMayInitiateAtOnce(World& world) {
  Pair pair(world, {.size = 2 << 20});
  auto back = pair.there.Open(pair.here);
  ASSERT_NE(back, nullptr);
  Flight returning(world, pair.there);
  pair.local.Fill(90);
  pair.remote.Fill(91);
  const uint64_t half = 1 << 20;
  // Each pushes its lower half into the other's upper half.
  pair.flight.Bulk(*pair.peer, {Op::kWrite, pair.local.address(), pair.remote.address() + half,
                                pair.remote.key(), half, kNever});
  returning.Bulk(*back, {Op::kWrite, pair.remote.address(), pair.local.address() + half,
                         pair.local.key(), half, kNever});
  pair.flight.Pump();
  EXPECT_TRUE(returning.Finish());
  EXPECT_TRUE(pair.flight.Finish());
  EXPECT_EQ(PatternErrors(pair.remote.data() + half, half, 90), "");
  EXPECT_EQ(PatternErrors(pair.local.data() + half, half, 91), "");
}

void NodeReachesItself(World& world) {
  Node& node = world.Add("self");
  Buffer from(node, {.size = 70'000});
  Buffer to(node, {.size = 70'000});
  auto peer = node.transport().OpenPeer(node.address(), world.In(Patience()));
  if (peer.code() == Code::kUnsupported) GTEST_SKIP() << peer.status().message();
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  Flight flight(world, node);
  from.Fill(95);
  flight.Bulk(**peer, {Op::kRead, to.address(), from.address(), from.key(), 70'000, kNever});
  ASSERT_TRUE(flight.Finish());
  EXPECT_EQ(to.Errors(95), "");
}

void MetricsCountWhatMoved(World& world) {
  Pair pair(world, {.size = 1 << 20});
  size_t slices = 0;
  for (const Op op : kOps) slices += pair.flight.Bulk(*pair.peer, pair.Whole(op));
  ASSERT_TRUE(pair.flight.Finish());
  const TransportMetrics here = pair.here.transport().Metrics();
  const TransportMetrics there = pair.there.transport().Metrics();
  EXPECT_GE(here.bytes_sent, 1u << 20);
  EXPECT_GE(here.bytes_received, 1u << 20);
  // Who counts the owner's bytes differs (one-sided transports move them behind its back); slices served
  // through it do not.
  EXPECT_LE(there.slices_served, slices);
  EXPECT_EQ(here.requests_refused + there.requests_refused, 0u);
  EXPECT_EQ(here.checksum_errors + there.checksum_errors, 0u);
  EXPECT_EQ(here.connections_rejected + there.connections_rejected, 0u);
}

constexpr Case kCases[] = {
    {"NameCapabilitiesAndAddressAreSane", NameCapabilitiesAndAddressAreSane},
    {"EverySizeMovesBothWays", EverySizeMovesBothWays},
    {"UnalignedRangesMoveBothWays", UnalignedRangesMoveBothWays},
    {"SliceOfTheLargestSizeMoves", SliceOfTheLargestSizeMoves},
    {"MebibytesMoveInManySlices", MebibytesMoveInManySlices},
    {"PiecesScatterAndGather", PiecesScatterAndGather},
    {"PiecesOfOneSliceLieInSeveralRegions", PiecesOfOneSliceLieInSeveralRegions},
    {"EverySliceCompletesExactlyOnce", EverySliceCompletesExactlyOnce},
    {"PostWithoutPollIsBoundedAndLosesNothing", PostWithoutPollIsBoundedAndLosesNothing},
    {"PollWithNothingInFlightReturnsNothing", PollWithNothingInFlightReturnsNothing},
    {"DescriptorAndWakeTimeTellWhenToPoll", DescriptorAndWakeTimeTellWhenToPoll},
    {"LanesOfOneNodeWorkSideBySide", LanesOfOneNodeWorkSideBySide},
    {"OneLaneServesManyPeers", OneLaneServesManyPeers},
    {"BothSidesMayInitiateAtOnce", BothSidesMayInitiateAtOnce},
    {"NodeReachesItself", NodeReachesItself},
    {"MetricsCountWhatMoved", MetricsCountWhatMoved},
};

}  // namespace

std::span<const Case> DataCases() { return kCases; }

}  // namespace moonpool::transport::conformance
