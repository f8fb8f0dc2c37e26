#include "engine/plan.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "engine/options.h"

namespace moonpool::engine {
namespace {

using transport::Op;
using transport::Piece;

RegionView View(std::initializer_list<std::pair<uint64_t, uint64_t>> ranges) {
  RegionView view;
  uint32_t slot = 0;
  for (const auto& [address, size] : ranges) {
    view.regions.push_back({address, size, Rights::kReadWrite, {slot, 1, 100 + slot}, kNoArena, 0});
    ++slot;
  }
  return view;
}

struct Request {
  std::vector<uint64_t> local, remote, lengths;
  Ranges ranges() const { return {local, remote, lengths}; }
  void Add(uint64_t l, uint64_t r, uint64_t n) {
    local.push_back(l);
    remote.push_back(r);
    lengths.push_back(n);
  }
};

// Every byte of the request is moved exactly once, from where to where it was asked.
void ExpectCovers(const Request& request, const Plan& plan, const RegionView& view,
                  const PlanLimits& limits) {
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> moved;  // local -> remote, size
  for (const PlannedSlice& slice : plan.slices) {
    EXPECT_GE(slice.pieces, 1u);
    EXPECT_LE(slice.pieces, limits.slice_pieces);
    EXPECT_LE(slice.bytes, limits.slice_bytes);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < slice.pieces; ++i) {
      const Piece& piece = plan.pieces[slice.first_piece + i];
      ASSERT_LT(piece.key, slice.keys);
      const RegionKey& key = plan.keys[slice.first_key + piece.key];
      const RegionInfo* region = view.Find(piece.remote, piece.size);
      ASSERT_NE(region, nullptr);
      EXPECT_EQ(region->key, key);
      bytes += piece.size;
      EXPECT_TRUE(moved.emplace(piece.local, std::make_pair(piece.remote, piece.size)).second);
    }
    EXPECT_EQ(bytes, slice.bytes);
  }
  for (size_t i = 0; i < request.lengths.size(); ++i) {
    uint64_t at = 0;
    while (at < request.lengths[i]) {
      auto it = moved.upper_bound(request.local[i] + at);
      ASSERT_NE(it, moved.begin());
      --it;
      const uint64_t offset = request.local[i] + at - it->first;
      ASSERT_LT(offset, it->second.second)
          << "byte " << at << " of descriptor " << i << " is not moved";
      EXPECT_EQ(it->second.first + offset, request.remote[i] + at);
      at += it->second.second - offset;
    }
  }
}

TEST(Plan, OneDescriptorBecomesOneSlice) {
  Request request;
  request.Add(0x1000, 0x10000, 64);
  const auto plan = MakePlan(request.ranges(), Op::kRead, View({{0x10000, 4096}}), {});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->slices.size(), 1u);
  EXPECT_EQ(plan->pieces.size(), 1u);
  EXPECT_EQ(plan->slices[0].bytes, 64u);
}

TEST(Plan, NeighboursAreMerged) {
  Request request;
  for (uint64_t i = 0; i < 100; ++i) request.Add(0x1000 + i * 64, 0x10000 + i * 64, 64);
  const auto plan = MakePlan(request.ranges(), Op::kRead, View({{0x10000, 65536}}), {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pieces.size(), 1u);
}

TEST(Plan, EveryOtherBlockIsNotMerged) {
  Request request;
  for (uint64_t i = 0; i < 100; ++i) request.Add(0x100000 + i * 128, 0x10000 + i * 64, 64);
  const auto plan = MakePlan(request.ranges(), Op::kRead, View({{0x10000, 65536}}), {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pieces.size(), 100u);
}

TEST(Plan, LargeDescriptorsAreCutAndSpread) {
  Request request;
  request.Add(0x1000, 0x10000, 1 << 20);
  const PlanLimits limits{1 << 20, 512, 2};
  const auto plan = MakePlan(request.ranges(), Op::kWrite, View({{0x10000, 1 << 20}}), limits);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->slices.size(), 2u);
  EXPECT_EQ(plan->slices[0].bytes, plan->slices[1].bytes);
}

TEST(Plan, RemoteRangesMustLieInOneRegionWithTheRights) {
  RegionView view = View({{0x10000, 4096}, {0x11000, 4096}});
  view.regions[1].rights = Rights::kRead;
  struct Case {
    uint64_t remote, size;
    Op op;
  };
  for (const Case& bad :
       {Case{0xffff, 2, Op::kRead}, Case{0x10fff, 2, Op::kRead}, Case{0x11fff, 2, Op::kRead},
        Case{0x11000, 1, Op::kWrite}, Case{0, 1, Op::kRead}, Case{~0ULL - 1, 1, Op::kRead}}) {
    Request request;
    request.Add(0x1000, bad.remote, bad.size);
    EXPECT_EQ(MakePlan(request.ranges(), bad.op, view, {}).code(), Code::kNotFound)
        << std::hex << bad.remote;
  }
}

TEST(Plan, CheckRangesNamesTheDescriptor) {
  Request request;
  request.Add(0x1000, 0x10000, 8);
  request.Add(0x2000, 0x10008, 0);
  const Status zero = CheckRanges(request.ranges());
  EXPECT_EQ(zero.code(), Code::kInvalidArgument);
  EXPECT_NE(zero.message().find("descriptor 1"), std::string::npos) << zero.message();
  request.lengths[1] = uint64_t{1} << 40;
  EXPECT_EQ(CheckRanges(request.ranges()).code(), Code::kInvalidArgument);
  request.lengths[1] = 16;
  request.remote[1] = ~0ULL - 3;
  EXPECT_NE(CheckRanges(request.ranges()).message().find("wraps"), std::string::npos);
  request.remote.pop_back();
  EXPECT_EQ(CheckRanges(request.ranges()).code(), Code::kInvalidArgument);
}

TEST(Plan, RandomRequestsAreCoveredExactly) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    RegionView view;
    uint64_t address = 0x10000;
    for (uint32_t slot = 0; slot < 1 + random.Below(8); ++slot) {
      address += random.Below(3) * 4096;
      const uint64_t size = 4096 * (1 + random.Below(64));
      view.regions.push_back(
          {address, size, Rights::kReadWrite, {slot, 1, random.Next()}, kNoArena, 0});
      address += size;
    }
    Request request;
    uint64_t local = 0x1000000;
    for (uint64_t i = 0; i < 1 + random.Below(300); ++i) {
      const RegionInfo& region = view.regions[random.Below(view.regions.size())];
      const uint64_t size = 1 + random.Below(random.Chance(1, 4) ? region.size : 64);
      request.Add(local, region.address + random.Below(region.size - size + 1), size);
      local += size + random.Below(2) * 8;
    }
    const PlanLimits limits{4096 * (1 + random.Below(64)),
                            1 + static_cast<uint32_t>(random.Below(100)),
                            1 + static_cast<uint32_t>(random.Below(4))};
    const auto plan = MakePlan(request.ranges(), Op::kRead, view, limits);
    ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status().ToString();
    ExpectCovers(request, *plan, view, limits);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Plan, KeysCanBeRefreshedFromANewerView) {
  Request request;
  request.Add(0x1000, 0x10000, 64);
  RegionView view = View({{0x10000, 4096}});
  auto plan = MakePlan(request.ranges(), Op::kRead, view, {});
  ASSERT_TRUE(plan.ok());
  view.regions[0].key = {7, 9, 1234};
  ASSERT_TRUE(RefreshKeys(*plan, plan->slices[0], Op::kRead, view).ok());
  EXPECT_EQ(plan->keys[0].access_key, 1234u);
  view.regions.clear();
  EXPECT_EQ(RefreshKeys(*plan, plan->slices[0], Op::kRead, view).code(), Code::kNotFound);
}

}  // namespace
}  // namespace moonpool::engine
