#include "memory/offset_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"

namespace moonpool::memory {
namespace {

using testing::HasSubstr;

std::unique_ptr<OffsetAllocator> Make(const OffsetAllocatorOptions& options) {
  auto made = OffsetAllocator::Create(options);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

Extent Take(OffsetAllocator& space, uint64_t size, uint64_t alignment = 1) {
  auto extent = space.Allocate(size, alignment);
  EXPECT_TRUE(extent.ok()) << extent.status().ToString();
  return extent.ok() ? *extent : Extent{};
}

TEST(OffsetAllocator, SizesAreRoundedToTheGranularityAndDoNotOverlap) {
  auto space = Make({.capacity = 1024});
  const Extent a = Take(*space, 1);
  const Extent b = Take(*space, 65);
  EXPECT_EQ(a.size, 64u);
  EXPECT_EQ(b.size, 128u);
  EXPECT_TRUE(a.offset + a.size <= b.offset || b.offset + b.size <= a.offset);
  EXPECT_EQ(space->Usage().allocated, 192u);
  space->CheckInvariants();
}

TEST(OffsetAllocator, TheWholeSpaceIsOneExtentAndAgainAfterFree) {
  auto space = Make({.capacity = 1 << 20});
  for (int round = 0; round < 3; ++round) {
    const Extent all = Take(*space, 1 << 20);
    EXPECT_EQ(space->Allocate(1).code(), Code::kExhausted);
    EXPECT_EQ(space->Free(all.handle), Code::kOk);
  }
}

TEST(OffsetAllocator, FreedNeighboursGrowTogetherInAnyOrder) {
  std::vector<size_t> order = {0, 1, 2, 3};
  do {
    auto space = Make({.capacity = 4096});
    std::vector<Extent> quarters;
    for (int i = 0; i < 4; ++i) quarters.push_back(Take(*space, 1024));
    for (const size_t i : order) ASSERT_EQ(space->Free(quarters[i].handle), Code::kOk);
    space->CheckInvariants();
    EXPECT_EQ(space->Usage().gaps, 1u);
    EXPECT_TRUE(space->Allocate(4096).ok());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(OffsetAllocator, AStaleHandleIsRefusedEvenAfterReuse) {
  auto space = Make({.capacity = 4096});
  const Extent a = Take(*space, 4096);
  EXPECT_EQ(space->Free(a.handle), Code::kOk);
  EXPECT_EQ(space->Free(a.handle), Code::kStale);
  const Extent b = Take(*space, 4096);
  EXPECT_EQ(b.handle.index, a.handle.index);
  EXPECT_EQ(space->Free(a.handle), Code::kStale);
  EXPECT_FALSE(space->Find(a.handle).has_value());
  ASSERT_TRUE(space->Find(b.handle).has_value());
  EXPECT_EQ(space->Find(b.handle)->size, 4096u);
  EXPECT_EQ(space->Free({12345, 1}), Code::kStale);
  EXPECT_EQ(space->Free({0xffffffff, 0}), Code::kStale);
}

TEST(OffsetAllocator, OffsetsAreAlignedAsAsked) {
  auto space = Make({.capacity = 1 << 20});
  Take(*space, 64);
  for (const uint64_t alignment : {1, 64, 4096, 65536, 524288}) {
    EXPECT_EQ(Take(*space, 100, alignment).offset % alignment, 0u) << alignment;
    space->CheckInvariants();
  }
}

TEST(OffsetAllocator, AnAlignedGapIsUsedWithoutRoomToSpare) {
  auto space = Make({.capacity = 8192});
  EXPECT_EQ(Take(*space, 4096, 4096).offset % 4096, 0u);
  EXPECT_EQ(Take(*space, 4096, 4096).offset % 4096, 0u);
}

TEST(OffsetAllocator, ASizeWithinItsOwnBinIsFound) {
  // 33 and 33.5 lie in one bin: the rounded search alone would miss the gap that just fits.
  auto space = Make({.capacity = 67 * 64 * 16});
  EXPECT_TRUE(space->Allocate(67 * 64 * 16).ok());
}

TEST(OffsetAllocator, TooManyExtentsAreExhaustedAndFreeingHelps) {
  auto space = Make({.capacity = 1 << 20, .extents_max = 3});
  const Extent a = Take(*space, 64);
  Take(*space, 64);
  Take(*space, 64);
  EXPECT_THAT(space->Allocate(64).status().message(), HasSubstr("3 extents"));
  EXPECT_EQ(space->Free(a.handle), Code::kOk);
  EXPECT_TRUE(space->Allocate(64).ok());
}

TEST(OffsetAllocator, BadArgumentsAreNamed) {
  const auto why = [](const OffsetAllocatorOptions& options) {
    const auto made = OffsetAllocator::Create(options);
    EXPECT_EQ(made.code(), Code::kInvalidArgument);
    return made.status().message();
  };
  EXPECT_THAT(why({.capacity = 0}), HasSubstr("capacity"));
  EXPECT_THAT(why({.capacity = 100, .granularity = 48}), HasSubstr("granularity"));
  EXPECT_THAT(why({.capacity = 100, .granularity = 0}), HasSubstr("granularity"));
  EXPECT_THAT(why({.capacity = uint64_t{1} << 38}), HasSubstr("capacity"));
  EXPECT_THAT(why({.capacity = 4096, .extents_max = 0}), HasSubstr("extents_max"));
  auto space = Make({.capacity = 4096});
  EXPECT_EQ(space->Allocate(0).code(), Code::kInvalidArgument);
  EXPECT_EQ(space->Allocate(1, 3).code(), Code::kInvalidArgument);
  EXPECT_EQ(space->Allocate(1, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(space->Allocate(UINT64_MAX).code(), Code::kExhausted);
  EXPECT_EQ(space->Allocate(1, uint64_t{1} << 63).code(), Code::kExhausted);
  space->CheckInvariants();
}

TEST(OffsetAllocator, ALargeSpaceIsCoveredByACoarseGranularity) {
  auto space = Make({.capacity = uint64_t{1} << 46, .granularity = 1 << 16});
  const Extent a = Take(*space, uint64_t{1} << 45);
  const Extent b = Take(*space, uint64_t{1} << 45);
  EXPECT_EQ(std::max(a.offset, b.offset), uint64_t{1} << 45);
}

// Sizes as a cache sees them: many small, some large.
uint64_t MixedSize(Random& random) {
  const uint64_t kind = random.Below(10);
  if (kind < 6) return 64 + random.Below(4096);
  if (kind < 9) return 4096 + random.Below(64 << 10);
  return (64 << 10) + random.Below(512 << 10);
}

// Against a plain model, with everything checked on the way.
TEST(OffsetAllocator, BehavesLikeAModelUnderRandomUse) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    auto space = Make({.capacity = 1 << 22, .granularity = 64, .extents_max = 500});
    std::map<uint64_t, Extent> live;  // by offset
    for (int step = 0; step < 3000; ++step) {
      if (random.Chance(11, 20) || live.empty()) {
        const uint64_t size = 1 + MixedSize(random) / (1 + random.Below(16));
        const uint64_t alignment = uint64_t{1} << random.Below(14);
        const auto extent = space->Allocate(size, alignment);
        if (!extent.ok()) {
          ASSERT_EQ(extent.code(), Code::kExhausted);
          continue;
        }
        ASSERT_GE(extent->size, size);
        ASSERT_EQ(extent->offset % alignment, 0u);
        ASSERT_LE(extent->offset + extent->size, uint64_t{1} << 22);
        const auto after = live.lower_bound(extent->offset);
        ASSERT_TRUE(after == live.end() || extent->offset + extent->size <= after->first);
        ASSERT_TRUE(after == live.begin() ||
                    std::prev(after)->first + std::prev(after)->second.size <= extent->offset);
        live.emplace(extent->offset, *extent);
      } else {
        auto it = live.lower_bound(random.Below(1 << 22));
        if (it == live.end()) it = live.begin();
        ASSERT_EQ(space->Free(it->second.handle), Code::kOk);
        live.erase(it);
      }
      if (step % 100 == 0) space->CheckInvariants();
      ASSERT_EQ(space->Usage().extents, live.size());
    }
    for (const auto& [offset, extent] : live) ASSERT_EQ(space->Free(extent.handle), Code::kOk);
    space->CheckInvariants();
    ASSERT_TRUE(space->Allocate(1 << 22).ok()) << "everything grew together again";
  }
}

class FillTest : public testing::Test {
 protected:
  static constexpr uint64_t kCapacity = uint64_t{1} << 30;

  double Fill() {
    return static_cast<double>(space_->Usage().allocated) / static_cast<double>(kCapacity);
  }
  void FreeOne() {
    const size_t victim = random_.Below(live_.size());
    ASSERT_EQ(space_->Free(live_[victim]), Code::kOk);
    live_[victim] = live_.back();
    live_.pop_back();
  }
  bool Take(uint64_t size) {
    const auto extent = space_->Allocate(size);
    if (extent.ok()) live_.push_back(extent->handle);
    return extent.ok();
  }

  Random random_{7};
  std::unique_ptr<OffsetAllocator> space_ = Make({.capacity = kCapacity});
  std::vector<ExtentHandle> live_;
};

TEST_F(FillTest, MixedSizesFillTheSpaceFreshAndAfterAnyHalfWasFreed) {
  for (int round = 0; round < 5; ++round) {
    while (Take(MixedSize(random_))) continue;
    std::printf("full at %.2f %%, %zu extents\n", 100 * Fill(), live_.size());
    EXPECT_GE(Fill(), 0.95);
    for (size_t half = live_.size() / 2; half > 0; --half) FreeOne();
  }
}

// The hardest use: whatever the size, extents at random are freed until it fits, so that a large
// one waits until a wide enough gap happens to open.
TEST_F(FillTest, RandomEvictionForEverySizeKeepsMostOfTheSpaceInUse) {
  double sum = 0;
  constexpr int kSteps = 200000;
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t size = MixedSize(random_);
    while (!Take(size)) FreeOne();
    sum += Fill();
  }
  std::printf("in use on average: %.2f %%\n", 100 * sum / kSteps);
  EXPECT_GE(sum / kSteps, 0.80);
}

}  // namespace
}  // namespace moonpool::memory
