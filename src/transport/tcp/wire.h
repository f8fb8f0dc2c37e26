#pragma once

// The wire format of the tcp transport (docs/formats/tcp.md): encoding, and decoding into types
// that cannot be invalid. Every integer is little-endian. A decoder rejects whatever breaks the
// format, so that what it returns can be used without another look; only what depends on this
// process (regions, rights, who we are) is left to the caller.
//
// Not responsible for: sockets, payloads.
// Threads: pure functions and values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moonpool::tcp {

inline constexpr uint16_t kVersionMin = 1;
inline constexpr uint16_t kVersionMax = 1;

// The most that one message carries.
inline constexpr uint32_t kPiecesMax = 512;
inline constexpr uint64_t kSliceBytes = 1 << 20;

inline constexpr size_t kHelloBytes = 64;
inline constexpr size_t kWelcomeBytes = 80;
inline constexpr size_t kHeadBytes = 128;
inline constexpr size_t kEntryBytes = 16;  // a key or a piece in a table
inline constexpr size_t kReplyBytes = 40;
inline constexpr size_t kTrailerBytes = 8;
inline constexpr size_t kTableBytesMax = size_t{2} * kPiecesMax * kEntryBytes;
// A head has room for one key and this many pieces; what needs more has a table behind its head.
inline constexpr uint32_t kInlinePieces = 4;

inline constexpr int64_t kNoDeadline = INT64_MAX;

// How others reach this process. The host is the one at which its engine was reached.
struct Address {
  uint16_t port = 0;
  transport::NodeId id;
};
std::string EncodeAddress(const Address& address);
// kUnsupported names the versions; kCorrupt: not an address.
Result<Address> DecodeAddress(std::string_view blob);

// What an initiator says first.
struct Hello {
  uint16_t version_min = kVersionMin;
  uint16_t version_max = kVersionMax;
  transport::NodeId owner;      // whom it means to reach
  transport::NodeId initiator;  // who it is
  uint64_t fence = 0;           // an earlier connection that is to be stopped first, or 0
};
void EncodeHello(const Hello& hello, std::span<std::byte, kHelloBytes> out);
// kCorrupt: not a hello. A hello of versions that we do not speak decodes to its versions alone.
Result<Hello> DecodeHello(std::span<const std::byte, kHelloBytes> in);

// What the owner answers.
struct Welcome {
  uint16_t version_min = kVersionMin;
  uint16_t version_max = kVersionMax;
  uint16_t version = 0;  // the one chosen; 0: none, `code` says why
  Code code = Code::kOk;
  transport::NodeId owner;
  uint64_t connection = 0;  // names this connection in a later Hello::fence
  int64_t clock = 0;        // the owner's clock, nanoseconds
  std::array<uint8_t, 16> boot{};
  uint64_t fenced = 0;  // Hello::fence, now certainly stopped
};
void EncodeWelcome(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out);
Result<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in);

struct RemotePiece {
  uint64_t remote = 0;
  uint32_t size = 0;
  uint32_t key = 0;
  friend bool operator==(const RemotePiece&, const RemotePiece&) = default;
};

// The fixed part of a request.
struct Head {
  transport::Op op = transport::Op::kRead;
  bool checksum = false;
  uint64_t sequence = 0;
  int64_t deadline = kNoDeadline;  // on the owner's clock, nanoseconds
  uint64_t bytes = 0;
  uint32_t pieces = 0;
  uint32_t keys = 0;

  bool inlined() const { return keys == 1 && pieces <= kInlinePieces; }
  size_t table_bytes() const { return inlined() ? 0 : (size_t{keys} + pieces) * kEntryBytes; }
};

// A whole request: keys and pieces fit each other and the head.
struct Request {
  Head head;
  std::vector<RegionKey> keys;
  std::vector<RemotePiece> pieces;
};

// The bytes that EncodeRequest needs for a slice of these counts.
size_t RequestBytes(size_t pieces, size_t keys);
// Writes head and table of `slice` at `out`; returns their bytes. `head` has everything but the
// counts. Requires: ValidSlice(slice), RequestBytes() of room.
size_t EncodeRequest(Head head, const transport::Slice& slice, std::byte* out);
// False for a slice that the wire cannot carry or that does not fit itself.
bool ValidSlice(const transport::Slice& slice);

// The head of a request, from its first kHeadBytes; nothing if malformed. The table, if it has one,
// follows: DecodeTable. `keys` and `pieces` of an inlined one are filled at once.
bool DecodeHead(std::span<const std::byte, kHeadBytes> in, Request* out);
// Requires: `in` has out->head.table_bytes(), `head` the bytes that made out->head.
bool DecodeTable(std::span<const std::byte, kHeadBytes> head, std::span<const std::byte> in,
                 Request* out);

// The owner's answer to one request. A write is answered when it is over; the answer to a read
// whose code is ok is followed by `bytes` of payload and a trailer.
struct Reply {
  transport::Op op = transport::Op::kRead;
  Code code = Code::kOk;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  int64_t clock = 0;  // the owner's, when it answered
};
void EncodeReply(const Reply& reply, std::byte* out);
std::optional<Reply> DecodeReply(std::span<const std::byte, kReplyBytes> in);

// Follows every payload: its checksum, and whether the sender could send what it should (if not,
// the payload is padding).
struct Trailer {
  uint32_t crc = 0;
  Code code = Code::kOk;
};
void EncodeTrailer(const Trailer& trailer, std::byte* out);
std::optional<Trailer> DecodeTrailer(std::span<const std::byte, kTrailerBytes> in);

}  // namespace moonpool::tcp
