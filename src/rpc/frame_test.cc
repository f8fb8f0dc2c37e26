#include "rpc/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moonpool::rpc {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

Frame SomeRequest() {
  return {.kind = Kind::kRequest,
          .version = 1,
          .id = 0x1122334455667788,
          .timeout_ms = 5000,
          .method = "get",
          .payload = "key"};
}

Frame Decoded(std::string_view bytes) {
  const auto frame = Decode(bytes);
  EXPECT_TRUE(frame.ok()) << frame.status().ToString();
  return frame.ok() && frame->has_value() ? **frame : Frame{};
}

std::string Refusal(std::string_view bytes, size_t bytes_max = kFrameBytesMax) {
  const auto frame = Decode(bytes, bytes_max);
  EXPECT_EQ(frame.code(), Code::kCorrupt);
  return frame.status().message();
}

TEST(FrameTest, GoldenBytesOfARequest) {
  EXPECT_EQ(Encode(SomeRequest()),
            "MPR1\x01\x04\x00\x00\x88\x77\x66\x55\x44\x33\x22\x11\x88\x13\x00\x00\x03\x00\x00\x00"
            "\x03\x00\x00\x00getkey"s);
}

TEST(FrameTest, GoldenBytesOfAReply) {
  EXPECT_EQ(
      Encode({.kind = Kind::kReply, .version = 1, .id = 2, .code = Code::kStale, .payload = "old"}),
      "MPR1\x01\x05\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00"
      "\x03\x00\x00\x00old"s);
}

TEST(FrameTest, GoldenBytesOfTheHandshakeNeverChange) {
  const std::string zeros(14, '\0');
  EXPECT_EQ(EncodeHello({1, 3}), "MPR1\x00\x01"s + zeros + "\0\0\0\0\x02\0\0\0\x01\x03"s);
  EXPECT_EQ(EncodeWelcome(2), "MPR1\x00\x02"s + zeros + "\0\0\0\0\x01\0\0\0\x02"s);
  EXPECT_EQ(EncodeRefusal({1, 1}), "MPR1\x00\x03"s + zeros + "\0\0\0\0\x02\0\0\0\x01\x01"s);
}

TEST(FrameTest, ReadsBackWhatItWrote) {
  const std::string bytes = Encode(SomeRequest());
  const std::string more = bytes + "more";
  const Frame frame = Decoded(more);
  EXPECT_EQ(frame.kind, Kind::kRequest);
  EXPECT_EQ(frame.id, SomeRequest().id);
  EXPECT_EQ(frame.timeout_ms, 5000u);
  EXPECT_EQ(frame.method, "get");
  EXPECT_EQ(frame.payload, "key");
  EXPECT_EQ(frame.size(), bytes.size());
}

TEST(FrameTest, EveryPrefixIsIncompleteAndNotCorrupt) {
  const std::string bytes = Encode(SomeRequest());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto frame = Decode(std::string_view(bytes).substr(0, size));
    ASSERT_TRUE(frame.ok()) << size;
    EXPECT_FALSE(frame->has_value()) << size;
  }
}

TEST(FrameTest, ForeignBytesAreRefusedAtTheFirstDifference) {
  EXPECT_THAT(Refusal("H"), HasSubstr("not the Moonpool RPC protocol"));
  EXPECT_THAT(Refusal("HTTP/1.1 400"), HasSubstr("'HTTP/1.1'"));
  EXPECT_THAT(Refusal("\x16\x03\x01"), HasSubstr("'...'"));
}

TEST(FrameTest, EveryFieldIsChecked) {
  const auto with = [](size_t at, char value) {
    std::string bytes = Encode(SomeRequest());
    bytes[at] = value;
    return bytes;
  };
  EXPECT_THAT(Refusal(with(5, 0)), HasSubstr("unknown kind 0"));
  EXPECT_THAT(Refusal(with(5, 6)), HasSubstr("unknown kind 6"));
  EXPECT_THAT(Refusal(with(6, 1)), HasSubstr("unknown flags"));
  EXPECT_THAT(Refusal(with(22, 1)), HasSubstr("unknown flags"));
  EXPECT_THAT(Refusal(with(21, 1)), HasSubstr("method of 259 bytes, 128 allowed"));
  EXPECT_THAT(Refusal(with(27, 0x7f)), HasSubstr("67108864 allowed"));
}

TEST(FrameTest, TheBoundIsTheCallers) {
  const std::string bytes = Encode(SomeRequest());
  EXPECT_TRUE(Decode(bytes, 3).ok());
  EXPECT_THAT(Refusal(bytes, 2), HasSubstr("frame of 3 bytes, 2 allowed"));
}

TEST(FrameTest, AnUnknownCodeIsInternal) {
  std::string bytes = Encode({.kind = Kind::kReply, .version = 1, .code = Code::kStale});
  bytes[16] = 99;
  EXPECT_EQ(Decoded(bytes).code, Code::kInternal);
}

TEST(NegotiateTest, TakesTheHighestCommonVersion) {
  EXPECT_EQ(Negotiate({1, 3}, {2, 5}).value(), 3);
  EXPECT_EQ(Negotiate({2, 5}, {1, 3}).value(), 3);
  EXPECT_EQ(Negotiate({1, 1}, {1, 1}).value(), 1);
}

TEST(NegotiateTest, NamesBothRangesWhenNothingIsCommon) {
  const auto chosen = Negotiate({1, 1}, {2, 3});
  EXPECT_EQ(chosen.code(), Code::kUnsupported);
  EXPECT_THAT(chosen.status().message(), HasSubstr("this side speaks version 1, the peer 2 to 3"));
}

TEST(NegotiateTest, ARangeIsChecked) {
  EXPECT_EQ(DecodeRange("\x02\x05 and what a later version adds").value(), (VersionRange{2, 5}));
  EXPECT_EQ(DecodeRange("\x02").code(), Code::kCorrupt);
  EXPECT_EQ(DecodeRange("\x05\x02").code(), Code::kCorrupt);
}

}  // namespace
}  // namespace moonpool::rpc
