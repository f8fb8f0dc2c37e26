#include "transport/tcp/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/str.h"

namespace moonpool::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t Magic(char c) {
  return uint32_t{'M'} | uint32_t{'P'} << 8 | uint32_t{'T'} << 16 |
         static_cast<uint32_t>(static_cast<unsigned char>(c)) << 24;
}
constexpr uint32_t kAddressMagic = Magic('a');
constexpr uint32_t kHelloMagic = Magic('h');
constexpr uint32_t kWelcomeMagic = Magic('w');
constexpr uint32_t kReadMagic = Magic('R');
constexpr uint32_t kWriteMagic = Magic('W');
constexpr uint32_t kReplyMagic = Magic('A');

constexpr uint32_t kFlagChecksum = 1;
constexpr size_t kHeadCrcAt = 44;
constexpr size_t kInlineAt = 48;

template <typename T>
void Store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}
template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::optional<Code> CodeOf(uint32_t number) {
  if (number >= static_cast<uint32_t>(kCodeCount)) return std::nullopt;
  return static_cast<Code>(number);
}

bool SpeaksOurs(uint16_t version_min, uint16_t version_max) {
  return version_min <= kVersionMax && version_max >= kVersionMin;
}

void StoreKey(std::byte* at, const RegionKey& key) {
  Store(at, key.slot);
  Store(at + 4, key.generation);
  Store(at + 8, key.access_key);
}
void StorePiece(std::byte* at, const transport::Piece& piece) {
  Store(at, piece.remote);
  Store(at + 8, piece.size);
  Store(at + 12, piece.key);
}

// The checksum of a head as if its own field were zero.
uint32_t HeadCrc(std::span<const std::byte, kHeadBytes> in) {
  constexpr std::array<std::byte, 4> kZero{};
  uint32_t crc = Crc32c(0, in.data(), kHeadCrcAt);
  crc = Crc32c(crc, kZero.data(), kZero.size());
  return Crc32c(crc, in.data() + kHeadCrcAt + 4, kHeadBytes - kHeadCrcAt - 4);
}

// Reads keys and pieces one behind the other and checks them against the head.
bool ReadEntries(const std::byte* at, Request* out) {
  out->keys.resize(out->head.keys);
  for (RegionKey& key : out->keys) {
    key = {Load<uint32_t>(at), Load<uint32_t>(at + 4), Load<uint64_t>(at + 8)};
    at += kEntryBytes;
  }
  out->pieces.resize(out->head.pieces);
  uint64_t sum = 0;
  for (RemotePiece& piece : out->pieces) {
    piece = {Load<uint64_t>(at), Load<uint32_t>(at + 8), Load<uint32_t>(at + 12)};
    at += kEntryBytes;
    if (piece.size == 0 || piece.key >= out->head.keys) return false;
    sum += piece.size;
  }
  return sum == out->head.bytes;
}

}  // namespace

std::string EncodeAddress(const Address& address) {
  ByteWriter out;
  out.Put(kAddressMagic);
  out.Put(kVersionMin);
  out.Put(kVersionMax);
  out.Put(address.port);
  out.Put(address.id.node);
  out.Put(address.id.incarnation);
  return out.Take();
}

Result<Address> DecodeAddress(std::string_view blob) {
  ByteReader in(blob);
  const auto magic = in.Get<uint32_t>();
  const auto version_min = in.Get<uint16_t>();
  const auto version_max = in.Get<uint16_t>();
  if (!in.ok() || magic != kAddressMagic) {
    return Status(Code::kCorrupt, "not an address of the tcp transport");
  }
  if (!SpeaksOurs(version_min, version_max)) {
    return Status(Code::kUnsupported,
                  Str("peer speaks versions ", version_min, "-", version_max,
                      " of the tcp transport, this process ", kVersionMin, "-", kVersionMax));
  }
  Address out;
  out.port = in.Get<uint16_t>();
  out.id.node = in.Get<uint64_t>();
  out.id.incarnation = in.Get<uint64_t>();
  // Later versions of the format may say more behind this.
  const bool whole = version_max > kVersionMax ? in.ok() : in.Done();
  if (!whole) return Status(Code::kCorrupt, "address of the tcp transport has a wrong size");
  if (out.port == 0) return Status(Code::kCorrupt, "address of the tcp transport has port 0");
  return out;
}

void EncodeHello(const Hello& hello, std::span<std::byte, kHelloBytes> out) {
  std::ranges::fill(out, std::byte{0});
  std::byte* p = out.data();
  Store(p, kHelloMagic);
  Store(p + 4, hello.version_min);
  Store(p + 6, hello.version_max);
  Store(p + 8, hello.owner.node);
  Store(p + 16, hello.owner.incarnation);
  Store(p + 24, hello.initiator.node);
  Store(p + 32, hello.initiator.incarnation);
  Store(p + 40, hello.fence);
  Store(p + 60, Crc32c(0, p, 60));
}

Result<Hello> DecodeHello(std::span<const std::byte, kHelloBytes> in) {
  const std::byte* p = in.data();
  if (Load<uint32_t>(p) != kHelloMagic) return Status(Code::kCorrupt, "not a hello");
  Hello out;
  out.version_min = Load<uint16_t>(p + 4);
  out.version_max = Load<uint16_t>(p + 6);
  if (!SpeaksOurs(out.version_min, out.version_max)) return out;
  if (Load<uint32_t>(p + 60) != Crc32c(0, p, 60)) return Status(Code::kCorrupt, "bad checksum");
  out.owner = {Load<uint64_t>(p + 8), Load<uint64_t>(p + 16)};
  out.initiator = {Load<uint64_t>(p + 24), Load<uint64_t>(p + 32)};
  out.fence = Load<uint64_t>(p + 40);
  return out;
}

void EncodeWelcome(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out) {
  std::ranges::fill(out, std::byte{0});
  std::byte* p = out.data();
  Store(p, kWelcomeMagic);
  Store(p + 4, welcome.version_min);
  Store(p + 6, welcome.version_max);
  Store(p + 8, welcome.version);
  Store(p + 10, static_cast<uint16_t>(welcome.code));
  Store(p + 16, welcome.owner.node);
  Store(p + 24, welcome.owner.incarnation);
  Store(p + 32, welcome.connection);
  Store(p + 40, welcome.clock);
  std::memcpy(p + 48, welcome.boot.data(), welcome.boot.size());
  Store(p + 64, welcome.fenced);
  Store(p + 76, Crc32c(0, p, 76));
}

Result<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in) {
  const std::byte* p = in.data();
  if (Load<uint32_t>(p) != kWelcomeMagic) {
    return Status(Code::kCorrupt, "what answers there is not a moonpool tcp transport");
  }
  if (Load<uint32_t>(p + 76) != Crc32c(0, p, 76)) {
    return Status(Code::kCorrupt, "the peer's answer has a bad checksum");
  }
  Welcome out;
  out.version_min = Load<uint16_t>(p + 4);
  out.version_max = Load<uint16_t>(p + 6);
  out.version = Load<uint16_t>(p + 8);
  const auto code = CodeOf(Load<uint16_t>(p + 10));
  if (!code) return Status(Code::kCorrupt, "the peer's answer has an unknown code");
  out.code = *code;
  out.owner = {Load<uint64_t>(p + 16), Load<uint64_t>(p + 24)};
  out.connection = Load<uint64_t>(p + 32);
  out.clock = Load<int64_t>(p + 40);
  std::memcpy(out.boot.data(), p + 48, out.boot.size());
  out.fenced = Load<uint64_t>(p + 64);
  if (out.code == Code::kOk && (out.version < kVersionMin || out.version > kVersionMax)) {
    return Status(Code::kCorrupt, Str("the peer chose version ", out.version, ", offered were ",
                                      kVersionMin, "-", kVersionMax));
  }
  return out;
}

size_t RequestBytes(size_t pieces, size_t keys) {
  const bool inlined = keys == 1 && pieces <= kInlinePieces;
  return kHeadBytes + (inlined ? 0 : (keys + pieces) * kEntryBytes);
}

size_t EncodeRequest(Head head, const transport::Slice& slice, std::byte* out) {
  head.pieces = static_cast<uint32_t>(slice.pieces.size());
  head.keys = static_cast<uint32_t>(slice.keys.size());
  const bool inlined = head.inlined();
  std::memset(out, 0, kHeadBytes);
  Store(out, head.op == transport::Op::kWrite ? kWriteMagic : kReadMagic);
  Store(out + 4, head.checksum ? kFlagChecksum : 0u);
  Store(out + 8, head.sequence);
  Store(out + 16, head.deadline);
  Store(out + 24, head.bytes);
  Store(out + 32, head.pieces);
  Store(out + 36, head.keys);
  std::byte* at = out + (inlined ? kInlineAt : kHeadBytes);
  for (const RegionKey& key : slice.keys) {
    StoreKey(at, key);
    at += kEntryBytes;
  }
  for (const transport::Piece& piece : slice.pieces) {
    StorePiece(at, piece);
    at += kEntryBytes;
  }
  const size_t table = head.table_bytes();
  if (table > 0) Store(out + 40, Crc32c(0, out + kHeadBytes, table));
  Store(out + kHeadCrcAt, Crc32c(0, out, kHeadBytes));  // the field itself is still zero
  return kHeadBytes + table;
}

bool ValidSlice(const transport::Slice& slice) {
  if (slice.pieces.empty() || slice.pieces.size() > kPiecesMax) return false;
  if (slice.keys.empty() || slice.keys.size() > kPiecesMax) return false;
  if (slice.bytes == 0 || slice.bytes > kSliceBytes) return false;
  uint64_t sum = 0;
  for (const transport::Piece& piece : slice.pieces) {
    if (piece.size == 0 || piece.key >= slice.keys.size()) return false;
    sum += piece.size;
  }
  return sum == slice.bytes;
}

bool DecodeHead(std::span<const std::byte, kHeadBytes> in, Request* out) {
  const std::byte* p = in.data();
  const auto magic = Load<uint32_t>(p);
  if (magic != kReadMagic && magic != kWriteMagic) return false;
  if (Load<uint32_t>(p + kHeadCrcAt) != HeadCrc(in)) return false;
  const auto flags = Load<uint32_t>(p + 4);
  if ((flags & ~kFlagChecksum) != 0) return false;
  Head& head = out->head;
  head.op = magic == kWriteMagic ? transport::Op::kWrite : transport::Op::kRead;
  head.checksum = (flags & kFlagChecksum) != 0;
  head.sequence = Load<uint64_t>(p + 8);
  head.deadline = Load<int64_t>(p + 16);
  head.bytes = Load<uint64_t>(p + 24);
  head.pieces = Load<uint32_t>(p + 32);
  head.keys = Load<uint32_t>(p + 36);
  if (head.bytes == 0 || head.bytes > kSliceBytes) return false;
  if (head.pieces == 0 || head.pieces > kPiecesMax) return false;
  if (head.keys == 0 || head.keys > kPiecesMax) return false;
  if (head.inlined()) return ReadEntries(p + kInlineAt, out);
  return true;
}

bool DecodeTable(std::span<const std::byte, kHeadBytes> head, std::span<const std::byte> in,
                 Request* out) {
  if (in.size() != out->head.table_bytes()) return false;
  if (Crc32c(0, in.data(), in.size()) != Load<uint32_t>(head.data() + 40)) return false;
  return ReadEntries(in.data(), out);
}

void EncodeReply(const Reply& reply, std::byte* out) {
  Store(out, kReplyMagic);
  Store(out + 4, static_cast<uint16_t>(reply.code));
  Store(out + 6, static_cast<uint16_t>(reply.op));
  Store(out + 8, reply.sequence);
  Store(out + 16, reply.bytes);
  Store(out + 24, reply.clock);
  Store(out + 32, uint32_t{0});
  Store(out + 36, Crc32c(0, out, 36));
}

std::optional<Reply> DecodeReply(std::span<const std::byte, kReplyBytes> in) {
  const std::byte* p = in.data();
  if (Load<uint32_t>(p) != kReplyMagic) return std::nullopt;
  if (Load<uint32_t>(p + 36) != Crc32c(0, p, 36)) return std::nullopt;
  const auto code = CodeOf(Load<uint16_t>(p + 4));
  const auto op = Load<uint16_t>(p + 6);
  if (!code || op > static_cast<uint16_t>(transport::Op::kWrite)) return std::nullopt;
  Reply out;
  out.code = *code;
  out.op = static_cast<transport::Op>(op);
  out.sequence = Load<uint64_t>(p + 8);
  out.bytes = Load<uint64_t>(p + 16);
  out.clock = Load<int64_t>(p + 24);
  return out;
}

void EncodeTrailer(const Trailer& trailer, std::byte* out) {
  Store(out, trailer.crc);
  Store(out + 4, static_cast<uint32_t>(trailer.code));
}

std::optional<Trailer> DecodeTrailer(std::span<const std::byte, kTrailerBytes> in) {
  const auto code = CodeOf(Load<uint32_t>(in.data() + 4));
  if (!code) return std::nullopt;
  return Trailer{Load<uint32_t>(in.data()), *code};
}

}  // namespace moonpool::tcp
