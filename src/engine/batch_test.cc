#include "engine/batch.h"

#include <gtest/gtest.h>

namespace moonpool::engine {
namespace {

TEST(BatchTable, HandlesAreNeverMistaken) {
  BatchTable table(10);
  const auto first = table.Add(std::make_shared<Batch>(1));
  ASSERT_TRUE(first.ok());
  EXPECT_NE(*first, 0u);
  EXPECT_NE(table.Get(*first), nullptr);
  table.Remove(*first);
  EXPECT_EQ(table.Get(*first), nullptr);
  const auto second = table.Add(std::make_shared<Batch>(1));
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  table.Remove(*first);  // stale: nothing happens
  EXPECT_NE(table.Get(*second), nullptr);
  EXPECT_EQ(table.Get(0), nullptr);
  EXPECT_EQ(table.Get(~0ULL), nullptr);
}

TEST(BatchTable, IsBounded) {
  BatchTable table(2);
  ASSERT_TRUE(table.Add(std::make_shared<Batch>(1)).ok());
  const auto second = table.Add(std::make_shared<Batch>(1));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(table.Add(std::make_shared<Batch>(1)).code(), Code::kExhausted);
  table.Remove(*second);
  EXPECT_TRUE(table.Add(std::make_shared<Batch>(1)).ok());
  EXPECT_EQ(table.size(), 2u);
}

TEST(Batch, TheFirstFailureIsKept) {
  Batch batch(1);
  EXPECT_TRUE(RecordFailure(batch, {Code::kTimedOut, transport::Phase::kData, "p", "tcp", "slow"}));
  EXPECT_FALSE(RecordFailure(batch, {Code::kCancelled, transport::Phase::kNone, "", "", "late"}));
  MutexLock lock(batch.mutex);
  EXPECT_EQ(batch.failure.code(), Code::kTimedOut);
  EXPECT_EQ(batch.failure.message(), "peer p, transport tcp, phase data: slow");
}

}  // namespace
}  // namespace moonpool::engine
