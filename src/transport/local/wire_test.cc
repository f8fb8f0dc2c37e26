#include "transport/local/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace moonpool::local {
namespace {

std::string Hex(std::string_view bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<uint8_t>(c) >> 4];
    out += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

Token Counting(uint8_t first) {
  Token token;
  for (uint8_t& byte : token) byte = first++;
  return token;
}

Address SomeAddress() {
  return {{Counting(0), 0x1122, 0x3344}, 77, Counting(0x20), {0x0102030405060708, 9}};
}

Welcome SomeWelcome() {
  Welcome welcome;
  welcome.code = Code::kStale;
  welcome.cma_error = 1;
  welcome.id = {1, 2};
  welcome.cell = {0xabcd, Counting(0x40)};
  welcome.clock = 5;
  welcome.reason = "why";
  return welcome;
}

Write SomeWrite() {
  Write write;
  write.id = 7;
  write.deadline = 9;
  write.sources = {{3, 0, 0x1000}};
  write.keys = {{1, 2, 3}, {4, 5, 6}};
  write.pieces = {{0x10, 0x20, 64, 0, 0}, {0x30, 0x40, 128, 1, kNoSource}};
  return write;
}

std::string Encode(const Write& write) {
  std::string out(kMessageMax, '\0');
  out.resize(EncodeWrite(write, out.data()));
  return out;
}

TEST(LocalWire, AddressHasGoldenBytes) {
  EXPECT_EQ(Hex(EncodeAddress(SomeAddress())),
            "4d504c4c01000000"
            "000102030405060708090a0b0c0d0e0f"
            "22110000000000004433000000000000"
            "4d000000"
            "202122232425262728292a2b2c2d2e2f"
            "08070605040302010900000000000000");
}

TEST(LocalWire, HelloHasGoldenBytes) {
  Hello hello;
  hello.wants_board = true;
  hello.from = {1, 2};
  hello.to = {3, 4};
  hello.cell = {0xabcd, Counting(0x40)};
  EXPECT_EQ(Hex(EncodeHello(hello)),
            "010000004d504c4c0100000001000000"
            "01000000000000000200000000000000"
            "03000000000000000400000000000000"
            "cdab000000000000404142434445464748494a4b4c4d4e4f");
}

TEST(LocalWire, WelcomeHasGoldenBytes) {
  EXPECT_EQ(Hex(EncodeWelcome(SomeWelcome())),
            "020000004d504c4c010000000100000009000000"
            "01000000000000000200000000000000"
            "cdab000000000000404142434445464748494a4b4c4d4e4f"
            "050000000000000003000000776879");
}

TEST(LocalWire, WriteHasGoldenBytes) {
  EXPECT_EQ(Hex(Encode(SomeWrite())),
            "0300000001000200020000000000000007000000000000000900000000000000"
            "03000000000000000010000000000000"
            "01000000020000000300000000000000"
            "04000000050000000600000000000000"
            "100000000000000020000000000000004000000000000000"
            "30000000000000004000000000000000800000000100ffff");
}

TEST(LocalWire, ReplyAndArenaHaveGoldenBytes) {
  Reply reply;
  reply.code = Code::kTimedOut;
  reply.id = 0x1234;
  EXPECT_EQ(Hex(BytesOf(reply)), "04000000060000003412000000000000");
  ArenaMessage arena;
  arena.number = 5;
  arena.size = 4096;
  EXPECT_EQ(Hex(BytesOf(arena)), "06000000050000000010000000000000");
}

TEST(LocalWire, ValuesComeBack) {
  EXPECT_EQ(*DecodeAddress(EncodeAddress(SomeAddress())), SomeAddress());
  Hello hello;
  hello.from = {5, 6};
  Hello hello_back;
  ASSERT_TRUE(DecodeHello(EncodeHello(hello), &hello_back));
  EXPECT_EQ(hello_back, hello);
  Welcome welcome_back;
  ASSERT_TRUE(DecodeWelcome(EncodeWelcome(SomeWelcome()), &welcome_back));
  EXPECT_EQ(welcome_back, SomeWelcome());
  Write write;
  ASSERT_TRUE(DecodeWrite(Encode(SomeWrite()), &write));
  EXPECT_EQ(Encode(write), Encode(SomeWrite()));
}

TEST(LocalWire, EveryShorterAndLongerMessageIsRefused) {
  const std::string address = EncodeAddress(SomeAddress());
  const std::string hello = EncodeHello(Hello());
  const std::string welcome = EncodeWelcome(SomeWelcome());
  const std::string write = Encode(SomeWrite());
  Hello h;
  Welcome w;
  Write x;
  for (size_t n = 0; n < address.size(); ++n) {
    EXPECT_FALSE(DecodeAddress(address.substr(0, n)).ok()) << n;
  }
  for (size_t n = 0; n < hello.size(); ++n) EXPECT_FALSE(DecodeHello(hello.substr(0, n), &h)) << n;
  for (size_t n = 0; n < welcome.size(); ++n) {
    EXPECT_FALSE(DecodeWelcome(welcome.substr(0, n), &w)) << n;
  }
  for (size_t n = 0; n < write.size(); ++n) EXPECT_FALSE(DecodeWrite(write.substr(0, n), &x)) << n;
  EXPECT_FALSE(DecodeAddress(address + "x").ok());
  EXPECT_FALSE(DecodeHello(hello + "x", &h));
  EXPECT_FALSE(DecodeWelcome(welcome + "x", &w));
  EXPECT_FALSE(DecodeWrite(write + "x", &x));
}

TEST(LocalWire, AddressOfAnotherVersionIsUnsupported) {
  std::string address = EncodeAddress(SomeAddress());
  address[4] = 2;
  const auto decoded = DecodeAddress(address);
  EXPECT_EQ(decoded.code(), Code::kUnsupported);
  EXPECT_THAT(decoded.status().message(), testing::HasSubstr("version 2"));
}

TEST(LocalWire, WriteWithAnIndexOutOfRangeIsRefused) {
  Write decoded;
  Write write = SomeWrite();
  write.pieces[0].key = 2;
  EXPECT_FALSE(DecodeWrite(Encode(write), &decoded));
  write = SomeWrite();
  write.pieces[0].source = 1;
  EXPECT_FALSE(DecodeWrite(Encode(write), &decoded));
}

TEST(LocalWire, WriteOfMoreThanASliceIsRefused) {
  Write decoded;
  Write write = SomeWrite();
  write.pieces[0].size = kSliceBytes - write.pieces[1].size;
  EXPECT_TRUE(DecodeWrite(Encode(write), &decoded));
  ++write.pieces[0].size;
  EXPECT_FALSE(DecodeWrite(Encode(write), &decoded));
}

TEST(LocalWire, CountsBeyondTheBoundsAreRefused) {
  Write decoded;
  std::string bytes = Encode(SomeWrite());
  bytes[6] = static_cast<char>(0xff);  // keys
  bytes[7] = static_cast<char>(0xff);
  EXPECT_FALSE(DecodeWrite(bytes, &decoded));
  bytes = Encode(SomeWrite());
  std::memset(bytes.data() + 8, 0xff, 4);  // pieces
  EXPECT_FALSE(DecodeWrite(bytes, &decoded));
  Write none = SomeWrite();
  none.pieces.clear();
  EXPECT_FALSE(DecodeWrite(Encode(none), &decoded));
}

TEST(LocalWire, TheLargestWriteFits) {
  Write write;
  write.sources.resize(kSourcesMax);
  write.keys.resize(kKeysMax);
  write.pieces.resize(kPiecesMax);
  const std::string bytes = Encode(write);
  Write decoded;
  EXPECT_TRUE(DecodeWrite(bytes, &decoded));
  EXPECT_LE(bytes.size(), kMessageMax);
}

TEST(LocalWire, ReplyWithAnUnknownCodeIsRefused) {
  Reply reply;
  reply.code = static_cast<Code>(kCodeCount);
  Reply decoded;
  EXPECT_FALSE(DecodeReply(BytesOf(reply), &decoded));
  reply.code = Code::kOk;
  EXPECT_TRUE(DecodeReply(BytesOf(reply), &decoded));
}

TEST(LocalWire, LongReasonsAreCut) {
  Welcome welcome;
  welcome.reason.assign(kReasonMax + 50, 'x');
  Welcome decoded;
  ASSERT_TRUE(DecodeWelcome(EncodeWelcome(welcome), &decoded));
  EXPECT_EQ(decoded.reason.size(), kReasonMax);
}

}  // namespace
}  // namespace moonpool::local
