#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/port/crc32c_port.h"
#include "base/random.h"

namespace moonpool {
namespace {

// The chosen implementation and the reference; the processor's others are compared below.
uint32_t Sum(std::string_view text) {
  const uint32_t crc = Crc32c(0, text.data(), text.size());
  EXPECT_EQ(crc, Crc32cPortable(0, text.data(), text.size()));
  return crc;
}

std::vector<uint8_t> Noise(size_t size) {
  Random random(size + 1);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  return bytes;
}

TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(Sum(""), 0u);
  EXPECT_EQ(Sum("123456789"), 0xe3069283u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Sum(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Sum(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  EXPECT_EQ(Sum(rising), 0x46dd794eu);
  EXPECT_EQ(Sum(std::string(rising.rbegin(), rising.rend())), 0x113fdb5cu);
}

TEST(Crc32c, ContinuesWhereItStopped) {
  const auto bytes = Noise(20000);
  const uint32_t whole = Crc32c(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); cut += 997) {
    const uint32_t first = Crc32c(0, bytes.data(), cut);
    ASSERT_EQ(Crc32c(first, bytes.data() + cut, bytes.size() - cut), whole) << cut;
    const uint32_t portable = Crc32cPortable(0, bytes.data(), cut);
    ASSERT_EQ(Crc32cPortable(portable, bytes.data() + cut, bytes.size() - cut), whole) << cut;
  }
}

TEST(Crc32c, EveryKernelOfThisProcessorAgreesWithTheTableAtEverySize) {
  const auto bytes = Noise(70000);
  for (int n = 0; port::Crc32cKernelAt(n).extend != nullptr; ++n) {
    const port::Crc32cKernel kernel = port::Crc32cKernelAt(n);
    SCOPED_TRACE(kernel.name);
    for (size_t size = 0; size <= 65536; size += size < 1100 ? 1 : 1023) {
      const uint8_t* data = bytes.data() + size % 67;
      ASSERT_EQ(~kernel.extend(~0x12345678u, data, size), Crc32cPortable(0x12345678, data, size))
          << size;
    }
  }
}

TEST(Crc32c, SeesEachFlippedBit) {
  auto bytes = Noise(700);
  const uint32_t before = Crc32c(0, bytes.data(), bytes.size());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ASSERT_NE(Crc32c(0, bytes.data(), bytes.size()), before) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

TEST(Crc32c, NamesWhatItUses) {
  const port::Crc32cKernel best = port::BestCrc32cKernel();
  EXPECT_STREQ(Crc32cImplementation(), best.name == nullptr ? "table" : best.name);
}

}  // namespace
}  // namespace moonpool
