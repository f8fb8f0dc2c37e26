#include "base/bytes.h"

#include <gtest/gtest.h>

namespace moonpool {
namespace {

enum class Colour : uint16_t { kBlue = 0x0102 };

TEST(Bytes, AreLittleEndian) {
  ByteWriter writer;
  writer.Put(uint32_t{0x01020304});
  writer.Put(Colour::kBlue);
  EXPECT_EQ(writer.str(), std::string("\x04\x03\x02\x01\x02\x01", 6));
}

TEST(Bytes, AreReadBackAsWritten) {
  ByteWriter writer;
  writer.Put(int8_t{-1});
  writer.Put(uint64_t{0xfedcba9876543210});
  writer.PutBytes("name");
  writer.PutBytes("");
  writer.PutRaw("rest");
  const std::string bytes = writer.Take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Get<int8_t>(), -1);
  EXPECT_EQ(reader.Get<uint64_t>(), 0xfedcba9876543210);
  EXPECT_EQ(reader.GetBytes(4), "name");
  EXPECT_EQ(reader.GetBytes(0), "");
  EXPECT_EQ(reader.remaining(), 4u);
  EXPECT_FALSE(reader.Done());
  EXPECT_EQ(reader.GetRaw(4), "rest");
  EXPECT_TRUE(reader.Done());
}

TEST(Bytes, AShortReadFailsThisAndEveryLaterOne) {
  ByteReader reader("abc");
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint8_t>(), 0u);
  EXPECT_EQ(reader.GetRaw(1), "");
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_FALSE(reader.Done());
}

TEST(Bytes, ALengthBeyondTheBoundOrTheEndFails) {
  ByteWriter writer;
  writer.PutBytes("12345");
  ByteReader bounded(writer.str());
  EXPECT_EQ(bounded.GetBytes(4), "");
  EXPECT_FALSE(bounded.ok());
  ByteReader cut(std::string_view(writer.str()).substr(0, 8));
  EXPECT_EQ(cut.GetBytes(100), "");
  EXPECT_FALSE(cut.ok());
}

TEST(Bytes, AnEmptyReaderIsDone) { EXPECT_TRUE(ByteReader("").Done()); }

}  // namespace
}  // namespace moonpool
