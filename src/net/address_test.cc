#include "net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moonpool::net {
namespace {

using ::testing::HasSubstr;

HostPort Parsed(std::string_view text, std::optional<uint16_t> port = std::nullopt) {
  const auto result = ParseHostPort(text, port);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? *result : HostPort{};
}

std::string Refusal(std::string_view text, std::optional<uint16_t> port = std::nullopt) {
  const auto result = ParseHostPort(text, port);
  EXPECT_FALSE(result.ok()) << "accepted: " << text;
  EXPECT_EQ(result.code(), Code::kInvalidArgument);
  return result.status().message();
}

TEST(ParseHostPortTest, AcceptsEveryUsualForm) {
  EXPECT_EQ(Parsed("10.0.0.7:80"), (HostPort{"10.0.0.7", 80}));
  EXPECT_EQ(Parsed("[::1]:80"), (HostPort{"::1", 80}));
  EXPECT_EQ(Parsed("[fe80::1%eth0]:65535"), (HostPort{"fe80::1%eth0", 65535}));
  EXPECT_EQ(Parsed("node-7.pool_a.example:0"), (HostPort{"node-7.pool_a.example", 0}));
}

TEST(ParseHostPortTest, GivesTheDefaultPortToBareHosts) {
  EXPECT_EQ(Parsed("::1", 7), (HostPort{"::1", 7}));
  EXPECT_EQ(Parsed("[::1]", 7), (HostPort{"::1", 7}));
  EXPECT_EQ(Parsed("10.0.0.7", 7), (HostPort{"10.0.0.7", 7}));
  EXPECT_EQ(Parsed("node7", 7), (HostPort{"node7", 7}));
  EXPECT_EQ(Parsed("node7:8", 7), (HostPort{"node7", 8}));
}

TEST(ParseHostPortTest, SaysWhatIsWrong) {
  EXPECT_THAT(Refusal(""), HasSubstr("is empty"));
  EXPECT_THAT(Refusal("node7"), HasSubstr("'node7' has no port"));
  EXPECT_THAT(Refusal("::1"), HasSubstr("has no port"));
  EXPECT_THAT(Refusal("[::1]"), HasSubstr("has no port"));
  EXPECT_THAT(Refusal("[::1:80"), HasSubstr("no closing ']'"));
  EXPECT_THAT(Refusal("[::1]80"), HasSubstr("after ']'"));
  EXPECT_THAT(Refusal("[10.0.0.7]:80"), HasSubstr("no IPv6 address between"));
  EXPECT_THAT(Refusal("[]:80"), HasSubstr("no IPv6 address between"));
  EXPECT_THAT(Refusal(":80"), HasSubstr("has no host"));
  EXPECT_THAT(Refusal("a:b:c"), HasSubstr("is not an IPv6 address"));
  EXPECT_THAT(Refusal("node 7:80"), HasSubstr("characters other than"));
  EXPECT_THAT(Refusal("10.0.0.777:80"), HasSubstr("malformed IPv4"));
  EXPECT_THAT(Refusal("10.0.7:80"), HasSubstr("malformed IPv4"));
}

TEST(ParseHostPortTest, RefusesPortsThatAreNotPorts) {
  for (const char* text : {"a:", "a:x", "a:-1", "a:+1", "a:65536", "a:99999999999999999999", "a:1x",
                           "a: 1", "[::1]:", "[::1]:x"}) {
    EXPECT_THAT(Refusal(text, 7), HasSubstr("not a number from 0 to 65535")) << text;
  }
}

TEST(ParseHostPortTest, MessagesAreBoundedAndPrintable) {
  const std::string message = Refusal(std::string(100'000, 'x') + "\n\x01:");
  EXPECT_LT(message.size(), 400u);
  EXPECT_THAT(Refusal("a\nb:1"), HasSubstr("a?b"));
}

TEST(ParseHostPortTest, NothingHidesBehindANullCharacter) {
  const std::string_view text("::1\0]", 5);
  EXPECT_THAT(Refusal(text, 7), HasSubstr("is not an IPv6 address"));
  EXPECT_FALSE(NumericEndpoint(text, 7));
  EXPECT_FALSE(NumericEndpoint(std::string_view("10.0.0.7\0x", 10), 7));
}

TEST(HostPortTest, PrintsWhatParseReads) {
  for (const char* text : {"10.0.0.7:80", "[::1]:80", "node7:1"}) {
    EXPECT_EQ(Parsed(text).ToString(), text);
  }
}

TEST(EndpointTest, NumericAddressesNeedNoLookup) {
  EXPECT_EQ(NumericEndpoint("10.0.0.7", 80)->ToString(), "10.0.0.7:80");
  EXPECT_EQ(NumericEndpoint("::1", 80)->ToString(), "[::1]:80");
  EXPECT_EQ(NumericEndpoint("::1", 80)->host(), "::1");
  EXPECT_FALSE(NumericEndpoint("node7", 80));
  EXPECT_FALSE(NumericEndpoint("", 80));
  EXPECT_FALSE(NumericEndpoint("10.0.7", 80));
  EXPECT_FALSE(NumericEndpoint("fe80::1%no-such-interface", 80));
}

TEST(EndpointTest, MappedIpv4IsShownAsIpv4) {
  const auto mapped = NumericEndpoint("::ffff:10.0.0.7", 80);
  EXPECT_EQ(mapped->host(), "10.0.0.7");
  EXPECT_EQ(*mapped, *NumericEndpoint("10.0.0.7", 80));
}

TEST(EndpointTest, KnowsLoopback) {
  EXPECT_TRUE(NumericEndpoint("127.0.0.1", 1)->loopback());
  EXPECT_TRUE(NumericEndpoint("127.9.8.7", 1)->loopback());
  EXPECT_TRUE(NumericEndpoint("::1", 1)->loopback());
  EXPECT_TRUE(NumericEndpoint("::ffff:127.0.0.1", 1)->loopback());
  EXPECT_FALSE(NumericEndpoint("128.0.0.1", 1)->loopback());
  EXPECT_FALSE(NumericEndpoint("::2", 1)->loopback());
  EXPECT_FALSE(Endpoint().loopback());
}

TEST(EndpointTest, AnUnknownEndpointSaysSo) {
  EXPECT_FALSE(Endpoint().valid());
  EXPECT_EQ(Endpoint().ToString(), "unknown");
  EXPECT_EQ(Endpoint().port(), 0);
}

TEST(EndpointTest, WithPortKeepsTheHost) {
  EXPECT_EQ(NumericEndpoint("::1", 1)->WithPort(2).ToString(), "[::1]:2");
  EXPECT_EQ(NumericEndpoint("10.0.0.7", 1)->WithPort(2).ToString(), "10.0.0.7:2");
}

}  // namespace
}  // namespace moonpool::net
