#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace moonpool {
namespace {

TEST(Random, TheSameSeedGivesTheSameSequence) {
  Random a(42);
  Random b(42);
  Random c(43);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.Next();
    EXPECT_EQ(value, b.Next());
    differs = differs || value != c.Next();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, BelowStaysBelowAndReachesEverything) {
  Random random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7u);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(random.Below(1), 0u);
}

TEST(Random, ChanceIsAboutRight) {
  Random random(2);
  int hits = 0;
  for (int i = 0; i < 10000; ++i) hits += random.Chance(1, 4) ? 1 : 0;
  EXPECT_GT(hits, 2200);  // this seed's sequence is the same everywhere
  EXPECT_LT(hits, 2800);
}

TEST(Random, SecureBytesFillLongRangesAndDiffer) {
  std::array<uint8_t, 4096> bytes{};
  SecureBytes(bytes);
  std::set<uint8_t> values(bytes.begin(), bytes.end());
  EXPECT_GT(values.size(), 200u);
  EXPECT_NE(SecureUint64(), SecureUint64());
}

}  // namespace
}  // namespace moonpool
