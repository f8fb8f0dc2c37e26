#include <dirent.h>

#include <algorithm>
#include <atomic>

#include "base/str.h"
#include "base/thread.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

// Close is to take a second at most; a loaded machine may need more, a hang more than that.
Duration CloseMax() { return Patience(seconds(10)); }

constexpr uint64_t kRemoteSeed = 201;

// The buffers are refilled, and stay as they are. An owner may still read its own memory for a read
// that was given up: after one the remote buffer, which holds kRemoteSeed, is only looked at.
void ExpectQuiet(Pair& pair, Op op) {
  pair.local.Fill(200);
  if (op == Op::kWrite) pair.remote.Fill(kRemoteSeed);
  pair.flight.PumpFor(milliseconds(30));
  EXPECT_EQ(pair.local.Errors(200), "");
  EXPECT_EQ(pair.remote.Errors(kRemoteSeed), "");
}

Range Small(const Pair& pair, Op op) {
  Range range = pair.Whole(op);
  range.size = 4096;
  return range;
}

void CancelledSlicesCompleteOnceAndTouchNothingAfter(World& world) {
  Random random(1);
  Pair pair(world, {.size = world.params().bulk_bytes});
  for (int round = 0; round < 6; ++round) {
    const Op op = round < 3 ? Op::kWrite : Op::kRead;  // no write after a read that was given up
    pair.flight.Bulk(*pair.peer, pair.Whole(op));
    pair.flight.PumpFor(std::chrono::microseconds(random.Below(2000)));
    for (const uint64_t cookie : pair.flight.InFlight()) {
      pair.here.lane().Cancel(cookie);
      if (cookie % 3 == 0) pair.here.lane().Cancel(cookie);  // twice is once
    }
    pair.flight.Drop();
    ASSERT_TRUE(pair.flight.Finish());
    ExpectQuiet(pair, op);
  }
  // kUnavailable: the leaf may have to break the connection to be sure.
  EXPECT_EQ(pair.flight.Count(Code::kOk) + pair.flight.Count(Code::kCancelled) +
                pair.flight.Count(Code::kUnavailable),
            pair.flight.completed());
  EXPECT_TRUE(pair.flight.RunUntilOk(*pair.peer, Small(pair, Op::kRead)));
}

void CancelOfNothingIsHarmless(World& world) {
  Pair pair(world, {});
  pair.here.lane().Cancel(12345);
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
  pair.here.lane().Cancel(1);  // it has completed
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
}

void DetachEndsThePeersSlicesAndNoOthers(World& world) {
  Random random(2);
  Pair pair(world, {.size = world.params().bulk_bytes});
  Node& third = world.Add("third");
  Buffer other(third, {.size = 1 << 20});
  Buffer target(pair.here, {.size = 1 << 20});
  auto third_peer = pair.here.Open(third);
  ASSERT_NE(third_peer, nullptr);
  other.Fill(7);
  for (int round = 0; round < 6; ++round) {
    const Op op = round < 3 ? Op::kWrite : Op::kRead;  // no write after a read that was given up
    const uint64_t first = pair.flight.Add({third_peer.get(),
                                            Op::kRead,
                                            kNever,
                                            {{target.address(), other.address(), 4096, 0}},
                                            {other.key()},
                                            {}});
    pair.flight.Bulk(*pair.peer, pair.Whole(op));
    pair.flight.PumpFor(std::chrono::microseconds(random.Below(2000)));
    pair.flight.Drop();
    pair.here.lane().Detach(*pair.peer);
    ASSERT_TRUE(pair.flight.Finish());
    EXPECT_EQ(CodeName(pair.flight.code(first)), CodeName(Code::kOk));
    ExpectQuiet(pair, op);
    EXPECT_TRUE(pair.flight.RunUntilOk(*pair.peer, Small(pair, op))) << "the peer is spoilt";
    if (op == Op::kWrite) pair.remote.Fill(kRemoteSeed);
  }
  pair.here.lane().Detach(*pair.peer);
  pair.here.lane().Detach(*pair.peer);  // nothing is open
}

void CloseCompletesSlicesInFlight(World& world) {
  for (const Op op : kOps) {
    Pair pair(world, {.size = world.params().bulk_bytes});
    pair.remote.Fill(kRemoteSeed);
    pair.flight.Bulk(*pair.peer, pair.Whole(op));
    pair.flight.PumpFor(std::chrono::microseconds(500));
    const Time before = world.Now();
    pair.here.transport().Close();
    EXPECT_LT(world.Now() - before, CloseMax());
    pair.flight.Drop();
    ASSERT_TRUE(pair.flight.Finish());
    ExpectQuiet(pair, op);
  }
}

void CloseOfTheOwnerEndsItsPeersSlices(World& world) {
  for (const Kind kind : {Kind::kPlain, Kind::kArena}) {
    for (const Op op : kOps) {
      SCOPED_TRACE(Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op)));
      Pair pair(world, {.size = world.params().bulk_bytes, .kind = kind});
      pair.flight.Bulk(*pair.peer, pair.Whole(op));
      pair.flight.PumpFor(std::chrono::microseconds(500));
      const Time before = world.Now();
      pair.there.transport().Close();
      EXPECT_LT(world.Now() - before, CloseMax());
      pair.remote.Fill(kRemoteSeed);  // from now on nobody stores there
      ASSERT_TRUE(pair.flight.Finish());
      EXPECT_EQ(pair.remote.Errors(kRemoteSeed), "");
      EXPECT_EQ(pair.flight.Count(Code::kOk) + pair.flight.Count(Code::kUnavailable),
                pair.flight.completed());
      ExpectQuiet(pair, op);
      const Code after = pair.flight.Run(*pair.peer, Small(pair, op));
      EXPECT_NE(after, Code::kOk) << "a closed owner serves";
      EXPECT_EQ(pair.here.transport()
                    .OpenPeer(pair.there.address(), world.In(Patience(seconds(10))))
                    .ok(),
                false);
    }
  }
}

void CloseIsIdempotentAndUsableNowhere(World& world) {
  Pair pair(world, {});
  ASSERT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
  const PeerOptions there = pair.there.address();
  pair.here.transport().Close();
  pair.here.transport().Close();
  EXPECT_FALSE(pair.here.transport().OpenPeer(there, world.In(seconds(1))).ok());
  // What is accepted completes, not ok; nothing need be accepted.
  pair.flight.Bulk(*pair.peer, pair.Whole(Op::kRead));
  pair.flight.PumpFor(milliseconds(5));
  pair.flight.Drop();
  ASSERT_TRUE(pair.flight.Finish());
  EXPECT_EQ(pair.flight.Count(Code::kOk), 1u);
  pair.here.transport().Metrics();
}

void CloseOfWhatWasNeverUsed(World& world) {
  Node& node = world.Add("unused");
  const Time before = world.Now();
  node.transport().Close();
  EXPECT_LT(world.Now() - before, CloseMax());
}

void CloseFromAnotherThreadEndsATransfer(World& world) {
  Pair pair(world, {.size = world.params().bulk_bytes});
  std::atomic<bool> started{false};  // pairs: stored by the poller after its first progress
  Thread poller("poller", [&](const std::stop_token&) {
    pair.flight.Bulk(*pair.peer, pair.Whole(Op::kRead));
    pair.flight.Pump();
    started.store(true, std::memory_order_release);
    pair.flight.PumpFor(milliseconds(1));
    pair.flight.Drop();
    pair.flight.Finish();
  });
  EXPECT_TRUE(world.Until([&] { return started.load(std::memory_order_acquire); }));
  pair.here.transport().Close();
  poller.Join();
  EXPECT_EQ(pair.here.lane().in_flight(), 0u);
}

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

void PeersAndLanesComeAndGoWithoutLeaks(World& world) {
  Pair pair(world, {});
  const auto turn = [&] {
    auto peer = pair.here.Open(pair.there);
    ASSERT_NE(peer, nullptr);
    auto lane = pair.here.transport().OpenLane();
    ASSERT_TRUE(lane.ok());
    Flight flight(world, pair.here, **lane);
    EXPECT_TRUE(flight.RunUntilOk(*peer, pair.Whole(Op::kRead)));
    (*lane)->Detach(*peer);
  };
  for (int i = 0; i < 4; ++i) turn();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 64; ++i) turn();
  EXPECT_TRUE(world.Until([&] { return OpenDescriptors() <= before + 8; }))
      << "descriptors: " << before << " before, " << OpenDescriptors() << " after";
  EXPECT_TRUE(world.Until([&] { return pair.there.transport().Metrics().connections_open <= 16; }));
}

constexpr Case kCases[] = {
    {"CancelledSlicesCompleteOnceAndTouchNothingAfter",
     CancelledSlicesCompleteOnceAndTouchNothingAfter},
    {"CancelOfNothingIsHarmless", CancelOfNothingIsHarmless},
    {"DetachEndsThePeersSlicesAndNoOthers", DetachEndsThePeersSlicesAndNoOthers},
    {"CloseCompletesSlicesInFlight", CloseCompletesSlicesInFlight},
    {"CloseOfTheOwnerEndsItsPeersSlices", CloseOfTheOwnerEndsItsPeersSlices},
    {"CloseIsIdempotentAndUsableNowhere", CloseIsIdempotentAndUsableNowhere},
    {"CloseOfWhatWasNeverUsed", CloseOfWhatWasNeverUsed},
    {"CloseFromAnotherThreadEndsATransfer", CloseFromAnotherThreadEndsATransfer},
    {"PeersAndLanesComeAndGoWithoutLeaks", PeersAndLanesComeAndGoWithoutLeaks},
};

}  // namespace

std::span<const Case> EndingCases() { return kCases; }

}  // namespace moonpool::transport::conformance
