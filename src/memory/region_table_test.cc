#include "memory/region_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/thread.h"

namespace moonpool::memory {
namespace {

using testing::HasSubstr;

class RegionTableTest : public testing::Test {
 protected:
  RegionInfo Add(uint64_t address, uint64_t size, Rights rights = Rights::kReadWrite) {
    auto info = table_.Register({.address = address, .size = size, .rights = rights});
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? *info : RegionInfo{};
  }
  Code Refused(const RegisterOptions& options) { return table_.Register(options).code(); }
  Status Drop(uint64_t address) { return table_.Deregister(address, Soon()); }
  Time Now() { return clock_.Now(); }
  Time Soon() { return clock_.Now() + std::chrono::seconds(100); }

  SystemClock clock_;
  RegionTable table_{clock_};
};

TEST_F(RegionTableTest, ARegionIsFoundByEachRangeInside) {
  const RegionInfo info = Add(0x1000, 0x100, Rights::kRead);
  EXPECT_EQ(table_.Find(0x1000, 0x100), info);
  EXPECT_EQ(table_.Find(0x10ff, 1), info);
  EXPECT_EQ(table_.Find(0x10ff, 2), std::nullopt);
  EXPECT_EQ(table_.Find(0xfff, 1), std::nullopt);
  EXPECT_EQ(table_.Find(0xfff, 0x102), std::nullopt);
  EXPECT_EQ(table_.Find(0x1100, 1), std::nullopt);
  EXPECT_EQ(table_.Find(0x1000, 0), std::nullopt);
  EXPECT_EQ(table_.Find(0x1001, UINT64_MAX), std::nullopt);
}

TEST_F(RegionTableTest, OverlapsAreRefusedNamingTheOtherAndNeighboursAreNot) {
  Add(0x1000, 0x100);
  for (const RegisterOptions& bad :
       std::vector<RegisterOptions>{{.address = 0x1000, .size = 0x100},
                                    {.address = 0x1050, .size = 1},
                                    {.address = 0xf00, .size = 0x101},
                                    {.address = 0x10ff, .size = 0x1000},
                                    {.address = 0x1, .size = UINT64_MAX - 1}}) {
    const auto refused = table_.Register(bad);
    EXPECT_EQ(refused.code(), Code::kAlreadyExists);
    EXPECT_THAT(refused.status().message(), HasSubstr("0x1000"));
  }
  Add(0xf00, 0x100);
  Add(0x1100, 0x100);
  EXPECT_EQ(table_.size(), 3u);
}

TEST_F(RegionTableTest, NullEmptyWrappingAndUnknownRightsAreRefused) {
  EXPECT_EQ(Refused({.address = 0, .size = 1}), Code::kInvalidArgument);
  EXPECT_EQ(Refused({.address = 1, .size = 0}), Code::kInvalidArgument);
  EXPECT_EQ(Refused({.address = UINT64_MAX, .size = 2}), Code::kInvalidArgument);
  EXPECT_EQ(Refused({.address = 2, .size = UINT64_MAX}), Code::kInvalidArgument);
  EXPECT_EQ(Refused({.address = 1, .size = 1, .rights = static_cast<Rights>(4)}),
            Code::kInvalidArgument);
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_EQ(Add(UINT64_MAX, 1).size, 1u);  // the last byte there is
}

TEST_F(RegionTableTest, EnteringChecksKeyRightsAndRange) {
  const RegionInfo info = Add(0x1000, 0x100, Rights::kRead);
  const auto enter = [&](uint64_t address, uint64_t size, Rights need) {
    const Code code = table_.Enter(info.key, address, size, need);
    if (code == Code::kOk) table_.Leave(info.key);
    return code;
  };
  EXPECT_EQ(enter(0x1000, 0x100, Rights::kRead), Code::kOk);
  EXPECT_EQ(enter(0x10ff, 1, Rights::kRead), Code::kOk);
  EXPECT_EQ(enter(0x1000, 1, Rights::kWrite), Code::kInvalidArgument);
  EXPECT_EQ(enter(0x1000, 0, Rights::kRead), Code::kInvalidArgument);
  EXPECT_EQ(enter(0xfff, 1, Rights::kRead), Code::kInvalidArgument);
  EXPECT_EQ(enter(0x1100, 1, Rights::kRead), Code::kInvalidArgument);
  EXPECT_EQ(enter(0x10ff, 2, Rights::kRead), Code::kInvalidArgument);
  EXPECT_EQ(enter(0x1000, uint64_t{1} << 40, Rights::kRead), Code::kInvalidArgument);
  EXPECT_EQ(enter(0x1001, UINT64_MAX, Rights::kRead), Code::kInvalidArgument);
  RegionInfo seen;
  EXPECT_EQ(table_.Enter(info.key, Rights::kRead, &seen), Code::kOk);
  table_.Leave(info.key);
  EXPECT_EQ(seen, info);
}

TEST_F(RegionTableTest, WrongKeysAreStale) {
  const RegionInfo info = Add(0x1000, 0x100);
  for (const RegionKey& key :
       std::vector<RegionKey>{{info.key.slot, info.key.generation, info.key.access_key ^ 1},
                              {info.key.slot, info.key.generation + 1, info.key.access_key},
                              {info.key.slot + 1, info.key.generation, info.key.access_key},
                              {RegionTable::kRegionsMax - 1, 1, 0},
                              {0xffffffff, 0xffffffff, 0}}) {
    EXPECT_EQ(table_.Enter(key, 0x1000, 1, Rights::kRead), Code::kStale);
  }
  EXPECT_TRUE(Drop(0x1000).ok()) << "a refused visitor does not stay inside";
}

TEST_F(RegionTableTest, AKeyIsStaleAfterDeregistrationEvenWhenTheSlotIsUsedAgain) {
  const RegionInfo old = Add(0x1000, 0x100);
  ASSERT_TRUE(Drop(0x1000).ok());
  EXPECT_EQ(table_.Enter(old.key, 0x1000, 1, Rights::kRead), Code::kStale);
  EXPECT_EQ(table_.Find(0x1000, 1), std::nullopt);
  const RegionInfo fresh = Add(0x1000, 0x100);
  EXPECT_EQ(fresh.key.slot, old.key.slot);
  EXPECT_NE(fresh.key, old.key);
  EXPECT_EQ(table_.Enter(old.key, 0x1000, 1, Rights::kRead), Code::kStale);
  EXPECT_EQ(table_.Pin(fresh.key), Code::kOk);
  table_.Unpin(fresh.key);
}

TEST_F(RegionTableTest, DeregisteringWhatDoesNotBeginThereIsNotFound) {
  Add(0x1000, 0x100);
  EXPECT_EQ(Drop(0x1001).code(), Code::kNotFound);
  EXPECT_TRUE(Drop(0x1000).ok());
  EXPECT_EQ(Drop(0x1000).code(), Code::kNotFound);
}

TEST_F(RegionTableTest, DeregisteringTimesOutWhilePinnedAndLeavesTheRegionOpen) {
  const RegionInfo info = Add(0x1000, 0x100);
  ASSERT_EQ(table_.Pin(info.key), Code::kOk);
  EXPECT_EQ(table_.Deregister(0x1000, Now()).code(), Code::kTimedOut);
  EXPECT_EQ(table_.Deregister(0x1000, Now() + std::chrono::milliseconds(3)).code(),
            Code::kTimedOut);
  EXPECT_EQ(table_.Pin(info.key), Code::kOk);
  table_.Unpin(info.key);
  table_.Unpin(info.key);
  EXPECT_TRUE(Drop(0x1000).ok());
}

TEST_F(RegionTableTest, WhileARegionIsClosingNobodyEntersAndTheLastOneOutLetsItGo) {
  const RegionInfo info = Add(0x1000, 0x100);
  ASSERT_EQ(table_.Pin(info.key), Code::kOk);
  std::atomic<bool> gone{false};
  Thread closer("closer", [&](std::stop_token) {
    EXPECT_TRUE(table_.Deregister(0x1000, Soon()).ok());
    gone = true;
  });
  // Closed once nobody can enter.
  while (table_.Enter(info.key, 0x1000, 1, Rights::kRead) == Code::kOk) table_.Leave(info.key);
  EXPECT_EQ(table_.Find(0x1000, 1), std::nullopt);
  EXPECT_TRUE(table_.Snapshot(nullptr).empty());
  EXPECT_EQ(Drop(0x1000).code(), Code::kAgain);
  EXPECT_EQ(Refused({.address = 0x1000, .size = 1}), Code::kAlreadyExists);
  EXPECT_FALSE(gone);
  table_.Unpin(info.key);
  closer.Join();
  EXPECT_TRUE(gone);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(RegionTableTest, TheVersionGrowsWithEachChangeAndSnapshotsAreInOrder) {
  uint64_t version = 0;
  EXPECT_TRUE(table_.Snapshot(&version).empty());
  const RegionInfo b = Add(0x2000, 1);
  const RegionInfo a = Add(0x1000, 1);
  uint64_t later = 0;
  EXPECT_THAT(table_.Snapshot(&later), testing::ElementsAre(a, b));
  EXPECT_GT(later, version);
  EXPECT_EQ(later, table_.version());
  ASSERT_TRUE(Drop(0x1000).ok());
  EXPECT_GT(table_.version(), later);
}

TEST_F(RegionTableTest, AccessKeysDiffer) {
  std::set<uint64_t> keys;
  for (uint64_t i = 1; i <= 100; ++i) keys.insert(Add(i * 16, 8).key.access_key);
  EXPECT_EQ(keys.size(), 100u);
}

// One byte of memory per region says whether it is registered; whoever is inside must find it set.
TEST_F(RegionTableTest, NobodyIsInsideARegionThatDeregisterHasReturned) {
  constexpr uint64_t kRegions = 4;
  struct Word {
    std::atomic<uint64_t> a{0};
    std::atomic<uint64_t> b{0};
  };
  std::vector<int> open(kRegions, 1);  // plain: the table must order the accesses (tsan)
  std::vector<Word> keys(kRegions);    // the current key, for the visitors
  const auto publish = [&](uint64_t i) {
    const RegionKey key = Add((i + 1) * 0x1000, 0x100).key;
    keys[i].a = uint64_t{key.slot} << 32 | key.generation;
    keys[i].b = key.access_key;
  };
  for (uint64_t i = 0; i < kRegions; ++i) publish(i);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> entered{0};
  std::vector<Thread> visitors;
  for (uint64_t v = 0; v < 3; ++v) {
    visitors.emplace_back("visitor", [&, v](std::stop_token) {
      Random random(v);
      while (!stop) {
        const uint64_t i = random.Below(kRegions);
        const uint64_t a = keys[i].a;
        const RegionKey key{static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(a), keys[i].b};
        if (table_.Enter(key, (i + 1) * 0x1000, 0x100, Rights::kReadWrite) != Code::kOk) continue;
        ASSERT_EQ(open[i], 1);
        table_.Leave(key);
        ++entered;
      }
    });
  }
  Random random(99);
  const Time enough = Now() + std::chrono::milliseconds(500);
  for (int round = 0; round < 20000 && (Now() < enough || entered < 100); ++round) {
    const uint64_t i = random.Below(kRegions);
    ASSERT_TRUE(Drop((i + 1) * 0x1000).ok());
    open[i] = 0;
    while (Now() < enough - std::chrono::hours(1)) continue;  // a call: the 0 is really stored
    open[i] = 1;
    publish(i);
    if (round % 16 == 0) std::this_thread::yield();
  }
  stop = true;
  for (Thread& visitor : visitors) visitor.Join();
  EXPECT_GT(entered, 0u);
}

TEST_F(RegionTableTest, AHundredThousandRegionsTakeLittleTimeAndMemory) {
  constexpr uint64_t kCount = 100000;
  const auto heap = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = heap();
  const Time begin = Now();
  // In the order of a pool that is registered piece by piece, but not sorted.
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(
        table_.Register({.address = 0x10000 + (i * 7919 % kCount) * 4096, .size = 4096}).ok());
  }
  const double seconds = std::chrono::duration<double>(Now() - begin).count();
  const double bytes = static_cast<double>(heap() - before) / kCount;
  std::printf("100,000 regions: %.3f s, %.0f bytes each\n", seconds, bytes);
  // Sanitizers replace malloc; then nothing is counted, and this holds.
  EXPECT_LT(bytes, 200);
  EXPECT_LT(seconds, 20);  // 2 on a machine that is free
  EXPECT_EQ(table_.size(), kCount);
  ASSERT_TRUE(table_.Find(0x10000 + 77777 * 4096, 4096).has_value());
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_TRUE(Drop(0x10000 + i * 4096).ok());
  EXPECT_EQ(table_.size(), 0u);
}

}  // namespace
}  // namespace moonpool::memory
