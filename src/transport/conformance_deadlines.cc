#include <algorithm>

#include "base/str.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

void PassedDeadlineStoresNothing(World& world) {
  Pair pair(world, {.size = 64 * 1024});
  for (const Op op : kOps) {
    for (const Time deadline : {Time{}, world.Now() - seconds(1), world.Now()}) {
      pair.local.Fill(1);
      pair.remote.Fill(2);
      Range range = pair.Whole(op, deadline);
      range.size = 4096;
      EXPECT_EQ(CodeName(pair.flight.Run(*pair.peer, range)), CodeName(Code::kTimedOut));
      pair.flight.PumpFor(milliseconds(5));
      EXPECT_EQ(pair.local.Errors(1), "");
      EXPECT_EQ(pair.remote.Errors(2), "");
      range.deadline = kNever;
      EXPECT_TRUE(pair.flight.RunUntilOk(*pair.peer, range));
    }
  }
}

void FarDeadlinesAreNoSpecialCase(World& world) {
  Pair pair(world, {});
  for (const Time deadline : {kNever, kNever - Duration(1), kNever - seconds(1),
                              world.Now() + std::chrono::hours(24 * 365)}) {
    for (const Op op : kOps) {
      EXPECT_EQ(CodeName(pair.flight.Run(*pair.peer, pair.Whole(op, deadline))),
                CodeName(Code::kOk));
    }
  }
}

// Deadlines at any moment of a transfer: each slice ends by its own, ok or timed out, and afterwards nothing
// more is stored.
void DeadlinesInMidTransferEndIt(World& world) {
  Random random(31);
  for (const Kind kind : {Kind::kPlain, Kind::kArena}) {
    Pair pair(world, {.size = world.params().bulk_bytes, .kind = kind});
    for (const Op op : kOps) {
      for (int round = 0; round < 8; ++round) {
        SCOPED_TRACE(
            Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op), " round ", round));
        const Time deadline = world.In(std::chrono::microseconds(random.Below(12'000)));
        pair.flight.Bulk(*pair.peer, pair.Whole(op, deadline));
        ASSERT_TRUE(pair.flight.Finish());
        EXPECT_LT(world.Now() - deadline, kSettleMax + Patience(seconds(10)));
        // Refilling takes longer than most late writes; the rest of them show within the wait.
        pair.local.Fill(32);
        pair.remote.Fill(33);
        pair.flight.PumpFor(milliseconds(20));
        EXPECT_EQ(pair.local.Errors(32), "");
        EXPECT_EQ(pair.remote.Errors(33), "");
      }
    }
    EXPECT_EQ(pair.flight.Count(Code::kOk) + pair.flight.Count(Code::kTimedOut),
              pair.flight.completed());
    Range range = pair.Whole(Op::kRead);
    range.size = 4096;
    EXPECT_TRUE(pair.flight.RunUntilOk(*pair.peer, range));
  }
}

// Each slice has a deadline of its own: one that passes does not take the others with it.
void OneDeadlineDoesNotEndAnotherSlice(World& world) {
  Pair pair(world, {.size = 1 << 20});
  pair.remote.Fill(41);
  std::vector<uint64_t> good;
  for (uint64_t i = 0; i < 64; ++i) {
    const uint64_t at = i * 16'384;
    for (const Time deadline : {world.Now() - milliseconds(1), kNever}) {
      const uint64_t cookie =
          pair.flight.Add({pair.peer.get(),
                           Op::kRead,
                           deadline,
                           {{pair.local.address() + at, pair.remote.address() + at, 4096, 0}},
                           {pair.remote.key()},
                           {}});
      if (deadline == kNever) good.push_back(cookie);
    }
  }
  ASSERT_TRUE(pair.flight.Finish());
  EXPECT_EQ(pair.flight.Count(Code::kTimedOut), 64u);
  for (const uint64_t cookie : good)
    EXPECT_EQ(CodeName(pair.flight.code(cookie)), CodeName(Code::kOk));
}

constexpr Case kCases[] = {
    {"PassedDeadlineStoresNothing", PassedDeadlineStoresNothing},
    {"FarDeadlinesAreNoSpecialCase", FarDeadlinesAreNoSpecialCase},
    {"DeadlinesInMidTransferEndIt", DeadlinesInMidTransferEndIt},
    {"OneDeadlineDoesNotEndAnotherSlice", OneDeadlineDoesNotEndAnotherSlice},
};

}  // namespace

std::span<const Case> DeadlineCases() { return kCases; }

}  // namespace moonpool::transport::conformance
