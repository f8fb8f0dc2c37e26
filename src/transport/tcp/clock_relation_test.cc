#include "transport/tcp/clock_relation.h"

#include <gtest/gtest.h>

namespace moonpool::tcp {
namespace {

Time At(int64_t nanos) { return Time(Duration(nanos)); }

constexpr BootId kHere = {1};
constexpr BootId kThere = {2};

// The relation to an owner with `boot` that said `clock` between `asked` and `received`.
ClockRelation Measured(const BootId& boot, int64_t clock, int64_t asked, int64_t received) {
  Welcome welcome;
  welcome.boot = boot;
  welcome.clock = clock;
  ClockRelation relation;
  relation.Begin(welcome, kHere, At(asked), At(received));
  return relation;
}

TEST(ClockRelation, OneBootHasOneClock) {
  EXPECT_EQ(Measured(kHere, 150, 100, 200).ToOwner(At(5'000'000'000), At(200)), 5'000'000'000);
}

TEST(ClockRelation, OneBootWithAnotherClockIsMeasured) {
  // A time namespace: the owner's clock is 10 s ahead.
  const int64_t owner = 10'000'000'150;
  EXPECT_EQ(Measured(kHere, owner, 100, 200).ToOwner(At(300), At(200)), owner - 200 + 300);
}

TEST(ClockRelation, UnknownBootIsAnotherBoot) {
  Welcome welcome;
  welcome.clock = 150;
  ClockRelation relation;
  relation.Begin(welcome, BootId{}, At(100), At(200));
  EXPECT_FALSE(relation.same());
}

TEST(ClockRelation, DeadlinesNeverLieLaterThere) {
  // The owner is 1000 s ahead; its answer was 40 ms on the way back, 10 ms on the way there.
  constexpr int64_t kAhead = 1'000'000'000'000;
  const ClockRelation relation = Measured(kThere, kAhead + 10'000'000, 0, 50'000'000);
  const int64_t there = relation.ToOwner(At(1'000'000'000), At(50'000'000));
  EXPECT_LE(there, kAhead + 1'000'000'000);
  EXPECT_GE(there, kAhead + 1'000'000'000 - 41'000'000);
}

TEST(ClockRelation, AgesWithDriftAndLearnsFromAnswers) {
  ClockRelation relation = Measured(kThere, 0, 0, 0);
  constexpr int64_t kDay = 86'400'000'000'000;
  EXPECT_EQ(relation.ToOwner(At(kDay), At(kDay)), kDay - kDay / 1'000'000 * 200);
  relation.Observe(kDay - 1'000'000, At(kDay));
  EXPECT_EQ(relation.ToOwner(At(kDay), At(kDay)), kDay - 1'000'000);
  // A slower answer says less: the bound stays.
  relation.Observe(kDay - 500'000'000, At(kDay));
  EXPECT_EQ(relation.ToOwner(At(kDay), At(kDay)), kDay - 1'000'000);
}

TEST(ClockRelation, FarDeadlinesDoNotWrap) {
  const ClockRelation ahead = Measured(kThere, INT64_MAX / 2, 0, 0);
  EXPECT_EQ(ahead.ToOwner(kNever, At(0)), kNoDeadline);
  EXPECT_LT(ahead.ToOwner(Time::max() - Duration(1), At(0)), kNoDeadline);
  EXPECT_GT(ahead.ToOwner(Time::max() - Duration(1), At(0)), INT64_MAX / 2);
  const ClockRelation behind = Measured(kThere, INT64_MIN, 0, 0);
  EXPECT_LT(behind.ToOwner(At(5), At(0)), 0);
}

TEST(ClockRelation, BootIdOfThisMachineIsStable) {
  EXPECT_EQ(ReadBootId(), ReadBootId());
  EXPECT_NE(ReadBootId(), BootId{});
}

}  // namespace
}  // namespace moonpool::tcp
