#include "transport/tcp/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "base/crc32c.h"
#include "base/random.h"

namespace moonpool::tcp {
namespace {

using transport::Op;
using transport::Piece;
using transport::Slice;

std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<int>(b) >> 4];
    out += kDigits[static_cast<int>(b) & 15];
  }
  return out;
}

// A slice that owns what it points to.
struct Sample {
  std::vector<Piece> pieces;
  std::vector<RegionKey> keys;
  Slice slice;
  Sample(size_t piece_count, size_t key_count) {
    for (size_t i = 0; i < key_count; ++i) {
      const auto n = static_cast<uint32_t>(i);
      keys.push_back({n + 1, n + 2, uint64_t{0x1122334455667788} + n});
    }
    for (size_t i = 0; i < piece_count; ++i) {
      const auto n = static_cast<uint32_t>(i);
      pieces.push_back({uint64_t{0x1000} + n * 16, uint64_t{0x7f0000000000} + n * 4096, n + 1,
                        n % static_cast<uint32_t>(key_count)});
    }
    slice.pieces = pieces;
    slice.keys = keys;
    for (const Piece& piece : pieces) slice.bytes += piece.size;
  }
};

Head SampleHead(const Slice& slice) {
  Head head;
  head.op = Op::kWrite;
  head.checksum = true;
  head.sequence = 7;
  head.deadline = 123'456'789'000;
  head.bytes = slice.bytes;
  return head;
}

std::vector<std::byte> Encoded(const Slice& slice) {
  std::vector<std::byte> out(RequestBytes(slice.pieces.size(), slice.keys.size()));
  EXPECT_EQ(EncodeRequest(SampleHead(slice), slice, out.data()), out.size());
  return out;
}

bool Decode(std::span<const std::byte> bytes, Request* out) {
  const auto head = bytes.first<kHeadBytes>();
  if (!DecodeHead(head, out)) return false;
  return out->head.table_bytes() == 0 || DecodeTable(head, bytes.subspan(kHeadBytes), out);
}

TEST(Wire, RequestsOfEveryShapeComeBack) {
  for (const auto& [pieces, keys] :
       {std::pair<size_t, size_t>{1, 1}, {4, 1}, {5, 1}, {2, 2}, {512, 1}, {512, 512}, {1, 512}}) {
    const Sample sample(pieces, keys);
    Request out;
    ASSERT_TRUE(Decode(Encoded(sample.slice), &out)) << pieces << " " << keys;
    EXPECT_EQ(out.head.op, Op::kWrite);
    EXPECT_TRUE(out.head.checksum);
    EXPECT_EQ(out.head.sequence, 7u);
    EXPECT_EQ(out.head.deadline, 123'456'789'000);
    EXPECT_EQ(out.head.bytes, sample.slice.bytes);
    EXPECT_EQ(out.keys, sample.keys);
    ASSERT_EQ(out.pieces.size(), pieces);
    for (size_t i = 0; i < pieces; ++i) {
      const Piece& in = sample.pieces[i];
      EXPECT_EQ(out.pieces[i], (RemotePiece{in.remote, in.size, in.key}));
    }
  }
}

TEST(Wire, AnyFlippedBitOfARequestIsNoticed) {
  const Sample sample(6, 2);
  const std::vector<std::byte> good = Encoded(sample.slice);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << bit % 8;
    Request out;
    EXPECT_FALSE(Decode(bad, &out)) << "bit " << bit;
  }
}

TEST(Wire, RequestsThatDoNotFitThemselvesAreRefused) {
  const auto refused = [](auto change) {
    Sample sample(4, 1);
    change(sample);
    sample.slice.pieces = sample.pieces;
    EXPECT_FALSE(ValidSlice(sample.slice));
    Request out;
    EXPECT_FALSE(Decode(Encoded(sample.slice), &out));
  };
  refused([](Sample& s) { s.pieces[1].size = 0, s.slice.bytes -= 2; });
  refused([](Sample& s) { s.pieces[2].key = 1; });
  refused([](Sample& s) { s.slice.bytes += 1; });
  refused([](Sample& s) { s.slice.bytes = 0; });
  refused([](Sample& s) { s.pieces[0].size = kSliceBytes + 1, s.slice.bytes += kSliceBytes; });
  refused([](Sample& s) { s.slice.keys = {}; });
  EXPECT_TRUE(ValidSlice(Sample(512, 512).slice));
  EXPECT_FALSE(ValidSlice(Sample(513, 1).slice));
  EXPECT_FALSE(ValidSlice(Sample(1, 513).slice));
}

TEST(Wire, HellosWelcomesRepliesAndTrailersComeBack) {
  Hello hello;
  hello.owner = {1, 2};
  hello.initiator = {3, 4};
  hello.fence = 5;
  std::array<std::byte, kHelloBytes> hello_bytes;
  EncodeHello(hello, hello_bytes);
  auto hello_out = DecodeHello(hello_bytes);
  ASSERT_TRUE(hello_out.ok());
  EXPECT_EQ(hello_out->owner, hello.owner);
  EXPECT_EQ(hello_out->initiator, hello.initiator);
  EXPECT_EQ(hello_out->fence, 5u);

  Welcome welcome;
  welcome.version = 1;
  welcome.owner = {6, 7};
  welcome.connection = 8;
  welcome.clock = -9;
  welcome.boot.fill(10);
  welcome.fenced = 11;
  std::array<std::byte, kWelcomeBytes> welcome_bytes;
  EncodeWelcome(welcome, welcome_bytes);
  auto welcome_out = DecodeWelcome(welcome_bytes);
  ASSERT_TRUE(welcome_out.ok());
  EXPECT_EQ(welcome_out->owner, welcome.owner);
  EXPECT_EQ(welcome_out->connection, 8u);
  EXPECT_EQ(welcome_out->clock, -9);
  EXPECT_EQ(welcome_out->boot, welcome.boot);
  EXPECT_EQ(welcome_out->fenced, 11u);

  std::array<std::byte, kReplyBytes> reply_bytes;
  EncodeReply({Op::kWrite, Code::kStale, 12, 13, 14}, reply_bytes.data());
  const auto reply = DecodeReply(reply_bytes);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->op, Op::kWrite);
  EXPECT_EQ(reply->code, Code::kStale);
  EXPECT_EQ(reply->sequence, 12u);
  EXPECT_EQ(reply->bytes, 13u);
  EXPECT_EQ(reply->clock, 14);

  std::array<std::byte, kTrailerBytes> trailer_bytes;
  EncodeTrailer({15, Code::kTimedOut}, trailer_bytes.data());
  EXPECT_EQ(DecodeTrailer(trailer_bytes)->crc, 15u);
  EXPECT_EQ(DecodeTrailer(trailer_bytes)->code, Code::kTimedOut);
}

TEST(Wire, AnyFlippedBitOfAHandshakeOrReplyIsNoticed) {
  std::array<std::byte, kWelcomeBytes> welcome;
  Welcome value;
  value.version = 1;
  EncodeWelcome(value, welcome);
  for (size_t bit = 0; bit < welcome.size() * 8; ++bit) {
    auto bad = welcome;
    bad[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(DecodeWelcome(bad).ok()) << "bit " << bit;
  }
  std::array<std::byte, kReplyBytes> reply;
  EncodeReply({}, reply.data());
  for (size_t bit = 0; bit < reply.size() * 8; ++bit) {
    auto bad = reply;
    bad[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(DecodeReply(bad).has_value()) << "bit " << bit;
  }
}

TEST(Wire, HelloOfOtherVersionsTellsThem) {
  Hello hello;
  hello.version_min = 7;
  hello.version_max = 9;
  std::array<std::byte, kHelloBytes> bytes;
  EncodeHello(hello, bytes);
  bytes[50] = std::byte{1};  // what they mean is theirs
  auto out = DecodeHello(bytes);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->version_min, 7);
  EXPECT_EQ(out->version_max, 9);
}

TEST(Wire, AddressComesBackAndLaterVersionsMayAddToIt) {
  const std::string blob = EncodeAddress({4711, {1, 2}});
  std::string newer = blob + "more";
  newer[6] = 2;
  for (const std::string& text : {blob, newer}) {
    auto out = DecodeAddress(text);
    ASSERT_TRUE(out.ok());
    EXPECT_EQ(out->port, 4711);
    EXPECT_EQ(out->id, (transport::NodeId{1, 2}));
  }
  for (size_t size = 0; size < blob.size(); ++size) {
    EXPECT_EQ(DecodeAddress(blob.substr(0, size)).code(), Code::kCorrupt) << size;
  }
  EXPECT_EQ(DecodeAddress(blob + "more").code(), Code::kCorrupt);
  std::string later = blob;
  later[4] = 2;
  later[6] = 3;
  auto refused = DecodeAddress(later);
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_NE(refused.status().message().find("2-3"), std::string::npos);
}

// The bytes of version 1. They never change: a peer of an earlier build sends them.
TEST(Wire, GoldenBytes) {
  const std::string address = EncodeAddress({0x1234, {1, 2}});
  EXPECT_EQ(Hex(std::as_bytes(std::span(address))),
            "4d505461010001003412"
            "0100000000000000"
            "0200000000000000");
  Hello hello;
  hello.owner = {1, 2};
  hello.initiator = {3, 4};
  hello.fence = 5;
  std::array<std::byte, kHelloBytes> hello_bytes;
  EncodeHello(hello, hello_bytes);
  EXPECT_EQ(Hex(hello_bytes),
            "4d505468010001000100000000000000020000000000000003000000000000000400000000000000"
            "05000000000000000000000000000000000000001be8207e");
  Welcome welcome;
  welcome.version = 1;
  welcome.owner = {1, 2};
  welcome.connection = 3;
  welcome.clock = 4;
  welcome.boot.fill(0xab);
  welcome.fenced = 5;
  std::array<std::byte, kWelcomeBytes> welcome_bytes;
  EncodeWelcome(welcome, welcome_bytes);
  EXPECT_EQ(Hex(welcome_bytes),
            "4d505477010001000100000000000000010000000000000002000000000000000300000000000000"
            "0400000000000000abababababababababababababababab050000000000000000000000403f9bb6");
  EXPECT_EQ(Hex(Encoded(Sample(2, 1).slice)),
            "4d505457010000000700000000000000081a99be1c00000003000000000000000200000001000000"
            "00000000c032c8e10100000002000000887766554433221100000000007f00000100000000000000"
            "00100000007f00000200000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000");
  EXPECT_EQ(Hex(Encoded(Sample(1, 2).slice)),
            "4d505457010000000700000000000000081a99be1c00000001000000000000000100000002000000"
            "5122d4d3def3ed6c0000000000000000000000000000000000000000000000000000000000000000"
            "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
            "00000000000000000100000002000000887766554433221102000000030000008977665544332211"
            "00000000007f00000100000000000000");
  std::array<std::byte, kReplyBytes> reply;
  EncodeReply({Op::kWrite, Code::kStale, 1, 2, 3}, reply.data());
  EXPECT_EQ(Hex(reply),
            "4d505441090001000100000000000000020000000000000003000000000000000000000088e3300b");
  std::array<std::byte, kTrailerBytes> trailer;
  EncodeTrailer({0x11223344, Code::kTimedOut}, trailer.data());
  EXPECT_EQ(Hex(trailer), "4433221106000000");
}

TEST(Wire, RandomBytesDecodeToNothing) {
  Random random(1);
  std::array<std::byte, kHeadBytes> bytes;
  for (int i = 0; i < 10'000; ++i) {
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next());
    Request out;
    EXPECT_FALSE(DecodeHead(bytes, &out));
    EXPECT_FALSE(DecodeHello(std::span(bytes).first<kHelloBytes>()).ok());
    EXPECT_FALSE(DecodeWelcome(std::span(bytes).first<kWelcomeBytes>()).ok());
    EXPECT_FALSE(DecodeReply(std::span(bytes).first<kReplyBytes>()).has_value());
  }
}

}  // namespace
}  // namespace moonpool::tcp
