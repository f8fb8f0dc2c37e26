#include <gtest/gtest.h>

#include "run.h"

namespace moonpool::sim {
namespace {

TEST(Simulation, AThousandSeedsHoldTheInvariants) {
  RunResult sum;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const RunResult result = sim::Run(seed, 150);
    ASSERT_EQ(result.error, "") << "replay: script/sim --seed " << seed;
    sum.batches_ok += result.batches_ok;
    sum.batches_failed += result.batches_failed;
    sum.notifications += result.notifications;
  }
  // The runs must have exercised something on both sides.
  EXPECT_GT(sum.batches_ok, 10000u);
  EXPECT_GT(sum.batches_failed, 1000u);
  EXPECT_GT(sum.notifications, 1000u);
  std::printf("%llu ok, %llu failed, %llu notifications\n",
              static_cast<unsigned long long>(sum.batches_ok),
              static_cast<unsigned long long>(sum.batches_failed),
              static_cast<unsigned long long>(sum.notifications));
}

TEST(Simulation, OneSeedIsOneRun) {
  for (const uint64_t seed : {3, 17, 99}) {
    const RunResult a = sim::Run(seed, 150);
    const RunResult b = sim::Run(seed, 150);
    EXPECT_EQ(a.batches_ok, b.batches_ok);
    EXPECT_EQ(a.batches_failed, b.batches_failed);
    EXPECT_EQ(a.notifications, b.notifications);
    EXPECT_EQ(a.error, b.error);
  }
}

}  // namespace
}  // namespace moonpool::sim
