#include <gtest/gtest.h>

#include <vector>

#include "testing/log_collector.h"
#include "testing/manual_clock.h"
#include "testing/patience.h"
#include "testing/pattern.h"

namespace moonpool::testing {
namespace {

using std::chrono::seconds;

TEST(ManualClock, MovesOnlyWhenTold) {
  ManualClock clock;
  const Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(seconds(3));
  EXPECT_EQ(clock.Now(), start + seconds(3));
}

TEST(ManualClock, NeverGoesBack) {
  ManualClock clock;
  const Time start = clock.Now();
  clock.AdvanceTo(start + seconds(5));
  clock.AdvanceTo(start + seconds(2));
  EXPECT_EQ(clock.Now(), start + seconds(5));
}

TEST(Pattern, WhatWasFilledVerifies) {
  std::vector<uint8_t> bytes(1001);
  FillPattern(bytes.data(), bytes.size(), 7);
  EXPECT_EQ(PatternErrors(bytes.data(), bytes.size(), 7), "");
  EXPECT_EQ(bytes[13], PatternByte(7, 13));
}

TEST(Pattern, WrongByteIsLocated) {
  std::vector<uint8_t> bytes(1001);
  FillPattern(bytes.data(), bytes.size(), 7);
  bytes[500] ^= 0xff;
  const std::string errors = PatternErrors(bytes.data(), bytes.size(), 7);
  EXPECT_NE(errors.find("byte 500 of 1001"), std::string::npos) << errors;
  EXPECT_NE(errors.find("(1 wrong, the last at 500)"), std::string::npos) << errors;
  EXPECT_EQ(PatternPrefix(bytes.data(), bytes.size(), 7), 500u);
}

TEST(Pattern, PartsFitTogetherAtAnyOffset) {
  std::vector<uint8_t> bytes(300);
  for (size_t i = 0; i < bytes.size(); i += 3) FillPattern(bytes.data() + i, 3, 9, i);
  EXPECT_EQ(PatternErrors(bytes.data(), bytes.size(), 9), "");
  EXPECT_EQ(PatternErrors(bytes.data() + 11, 50, 9, 11), "");
}

TEST(Pattern, SeedsAndShiftsDiffer) {
  std::vector<uint8_t> bytes(4096);
  FillPattern(bytes.data(), bytes.size(), 1);
  EXPECT_LT(PatternPrefix(bytes.data(), bytes.size(), 2), 8u);
  EXPECT_LT(PatternPrefix(bytes.data() + 1, 1000, 1), 8u);
}

TEST(UniqueName, IsNeverTheSameTwice) { EXPECT_NE(UniqueName("a"), UniqueName("a")); }

TEST(LogCollector, CountsLinesByTextAndLevel) {
  LogCollector lines;
  Logger log(LogLevel::kDebug, lines.sink());
  log.Info("peer lost", {{"peer", "p"}});
  log.Warning("peer lost", {{"peer", "q"}});
  EXPECT_EQ(lines.Count("peer lost"), 2u);
  EXPECT_EQ(lines.Count("peer lost", LogLevel::kWarning), 1u);
  EXPECT_NE(lines.Text().find("q"), std::string::npos);
}

}  // namespace
}  // namespace moonpool::testing
