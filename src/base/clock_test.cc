#include "base/clock.h"

#include <gtest/gtest.h>

namespace moonpool {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr Time kStart{Duration(1'000'000'000)};

TEST(Clock, DoesNotGoBack) {
  const SystemClock clock;
  Time before = clock.Now();
  for (int i = 0; i < 10000; ++i) {
    const Time now = clock.Now();
    ASSERT_GE(now, before);
    before = now;
  }
}

TEST(Clock, AfterOverflowsToNever) {
  EXPECT_EQ(After(kStart, milliseconds(5)), kStart + milliseconds(5));
  EXPECT_EQ(After(kStart, -milliseconds(5)), kStart - milliseconds(5));
  EXPECT_EQ(After(kStart, Duration::max()), kNever);
  EXPECT_EQ(After(kNever, nanoseconds(1)), kNever);
}

TEST(Clock, MillisUntilRoundsUpAndKeepsToTheCap) {
  EXPECT_EQ(MillisUntil(kStart, kStart, 100), 0);
  EXPECT_EQ(MillisUntil(kStart, kStart - milliseconds(1), 100), 0);
  EXPECT_EQ(MillisUntil(kStart, kStart + nanoseconds(1), 100), 1);
  EXPECT_EQ(MillisUntil(kStart, kStart + milliseconds(7), 100), 7);
  EXPECT_EQ(MillisUntil(kStart, kStart + milliseconds(500), 100), 100);
  EXPECT_EQ(MillisUntil(kStart, kNever, 100), 100);
}

}  // namespace
}  // namespace moonpool
