#include "engine/descriptor.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/options.h"

namespace moonpool::engine {
namespace {

SegmentDescriptor Sample() {
  SegmentDescriptor d;
  d.name = "decode-0";
  d.id = {1, 2};
  d.version = 3;
  d.transports = {{"tcp", "blob"}};
  d.regions = {{0x1000, 0x10, Rights::kRead, {4, 5, 6}, kNoArena, 0},
               {0x2000, 0x20, Rights::kReadWrite, {7, 8, 9}, 1, 64}};
  return d;
}

std::string Hex(const std::string& bytes) {
  static const char* const kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[c & 15];
  }
  return out;
}

TEST(Descriptor, RoundTrip) {
  const SegmentDescriptor d = Sample();
  const auto back = DecodeDescriptor(EncodeDescriptor(d));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->name, d.name);
  EXPECT_EQ(back->id, d.id);
  EXPECT_EQ(back->version, d.version);
  ASSERT_EQ(back->transports.size(), 1u);
  EXPECT_EQ(back->transports[0].blob, "blob");
  EXPECT_EQ(back->regions, d.regions);
}

// The format of version 1 does not change: docs/formats/segment-descriptor.md.
TEST(Descriptor, GoldenBytes) {
  EXPECT_EQ(Hex(EncodeDescriptor(Sample())),
            "4d534431"
            "08000000"
            "6465636f64652d30"
            "0100000000000000"
            "0200000000000000"
            "0300000000000000"
            "01000000"
            "03000000"
            "746370"
            "04000000"
            "626c6f62"
            "02000000"
            "0010000000000000"
            "1000000000000000"
            "01"
            "04000000"
            "05000000"
            "0600000000000000"
            "ffffffff"
            "0000000000000000"
            "0020000000000000"
            "2000000000000000"
            "03"
            "07000000"
            "08000000"
            "0900000000000000"
            "01000000"
            "4000000000000000");
}

TEST(Descriptor, NotifyGoldenBytesAndRoundTrip) {
  const NotifyMessage message{{1, 2}, 3, {4, 5}, "me", "hi"};
  const std::string bytes = EncodeNotify(message);
  EXPECT_EQ(Hex(bytes),
            "4d534e31"
            "0100000000000000"
            "0200000000000000"
            "0300000000000000"
            "0400000000000000"
            "0500000000000000"
            "02000000"
            "6d65"
            "02000000"
            "6869");
  const auto back = DecodeNotify(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->sequence, 3u);
  EXPECT_EQ(back->receiver_id, (transport::NodeId{4, 5}));
  EXPECT_EQ(back->payload, "hi");
}

TEST(Descriptor, EveryCutIsRefused) {
  const std::string bytes = EncodeDescriptor(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeDescriptor(bytes.substr(0, size)).code(), Code::kCorrupt) << size;
  }
  EXPECT_EQ(DecodeDescriptor(bytes + "x").code(), Code::kCorrupt);
  const std::string notify = EncodeNotify({{1, 2}, 3, {4, 5}, "me", "hi"});
  for (size_t size = 0; size < notify.size(); ++size)
    EXPECT_FALSE(DecodeNotify(notify.substr(0, size)).ok()) << size;
}

TEST(Descriptor, AnotherVersionIsUnsupportedNotCorrupt) {
  std::string bytes = EncodeDescriptor(Sample());
  bytes[3] = '2';
  const auto result = DecodeDescriptor(bytes);
  EXPECT_EQ(result.code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find("'2'"), std::string::npos) << result.status().message();
}

TEST(Descriptor, LyingRegionsAreRefused) {
  auto refused = [](const std::vector<RegionInfo>& regions) {
    SegmentDescriptor d = Sample();
    d.regions = regions;
    return DecodeDescriptor(EncodeDescriptor(d)).code() == Code::kCorrupt;
  };
  const RegionInfo good{0x1000, 0x10, Rights::kRead, {}, kNoArena, 0};
  EXPECT_FALSE(refused({good}));
  RegionInfo empty = good;
  empty.size = 0;
  EXPECT_TRUE(refused({empty}));
  RegionInfo wraps = good;
  wraps.size = ~0ULL;
  EXPECT_TRUE(refused({wraps}));
  RegionInfo overlaps = good;
  overlaps.address += 8;
  EXPECT_TRUE(refused({good, overlaps}));
  RegionInfo rights = good;
  rights.rights = static_cast<Rights>(9);
  EXPECT_TRUE(refused({rights}));
}

TEST(Descriptor, RandomDamageNeverCrashesAndNeverYieldsBadRegions) {
  Random random(7);
  const std::string good = EncodeDescriptor(Sample());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n)
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Next());
    const auto d = DecodeDescriptor(bytes);
    if (!d.ok()) continue;
    uint64_t end = 0;
    for (const RegionInfo& region : d->regions) {
      EXPECT_GE(region.address, end);
      EXPECT_GT(region.size, 0u);
      end = region.address + region.size;
    }
  }
}

}  // namespace
}  // namespace moonpool::engine
