#include "rpc/frame.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/str.h"

namespace moonpool::rpc {
namespace {

constexpr std::string_view kMagic = "MPR1";

// The first bytes of something that is no frame, for the message.
std::string Printable(std::string_view bytes) {
  std::string out;
  for (const char c : bytes.substr(0, 8)) out += (c >= 0x20 && c < 0x7f) ? c : '.';
  return out;
}

Status Corrupt(std::string message) { return Status(Code::kCorrupt, std::move(message)); }

std::string RangeText(VersionRange range) {
  if (range.lowest == range.highest) return Str(int{range.lowest});
  return Str(int{range.lowest}, " to ", int{range.highest});
}

std::string RangeBytes(VersionRange range) {
  return {static_cast<char>(range.lowest), static_cast<char>(range.highest)};
}

}  // namespace

std::string Encode(const Frame& frame) {
  MOONPOOL_CHECK(frame.method.size() <= kMethodBytesMax);
  MOONPOOL_CHECK(frame.payload.size() <= UINT32_MAX);
  const bool reply = frame.kind == Kind::kReply;
  ByteWriter out;
  out.PutRaw(kMagic);
  out.Put(frame.version);
  out.Put(frame.kind);
  out.Put(uint16_t{0});
  out.Put(frame.id);
  out.Put(reply ? static_cast<uint32_t>(frame.code) : frame.timeout_ms);
  out.Put(static_cast<uint16_t>(frame.method.size()));
  out.Put(uint16_t{0});
  out.Put(static_cast<uint32_t>(frame.payload.size()));
  out.PutRaw(frame.method);
  out.PutRaw(frame.payload);
  return out.Take();
}

Result<std::optional<Frame>> Decode(std::string_view bytes, size_t bytes_max) {
  const size_t magic_seen = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, magic_seen) != kMagic.substr(0, magic_seen)) {
    return Corrupt(Str("not the Moonpool RPC protocol (it begins with '", Printable(bytes), "')"));
  }
  if (bytes.size() < kHeaderBytes) return std::optional<Frame>();
  ByteReader in(bytes.substr(kMagic.size()));
  Frame frame;
  frame.version = in.Get<uint8_t>();
  const auto kind = in.Get<uint8_t>();
  const auto flags = in.Get<uint16_t>();
  frame.id = in.Get<uint64_t>();
  const auto extra = in.Get<uint32_t>();
  const size_t method_bytes = in.Get<uint16_t>();
  const auto reserved = in.Get<uint16_t>();
  const size_t payload_bytes = in.Get<uint32_t>();
  if (kind < static_cast<uint8_t>(Kind::kHello) || kind > static_cast<uint8_t>(Kind::kReply)) {
    return Corrupt(Str("frame of unknown kind ", int{kind}));
  }
  frame.kind = static_cast<Kind>(kind);
  if (flags != 0 || reserved != 0) return Corrupt("frame with unknown flags");
  if (method_bytes > kMethodBytesMax) {
    return Corrupt(Str("method of ", method_bytes, " bytes, ", kMethodBytesMax, " allowed"));
  }
  if (payload_bytes > bytes_max) {
    return Corrupt(Str("frame of ", payload_bytes, " bytes, ", bytes_max, " allowed"));
  }
  if (frame.kind == Kind::kReply) {
    frame.code = extra < kCodeCount ? static_cast<Code>(extra) : Code::kInternal;
  } else {
    frame.timeout_ms = extra;
  }
  frame.method = in.GetRaw(method_bytes);
  frame.payload = in.GetRaw(payload_bytes);
  if (!in.ok()) return std::optional<Frame>();
  return std::optional<Frame>(frame);
}

std::string EncodeHello(VersionRange range) {
  const std::string payload = RangeBytes(range);
  return Encode({.kind = Kind::kHello, .method = {}, .payload = payload});
}

std::string EncodeWelcome(uint8_t version) {
  const std::string payload(1, static_cast<char>(version));
  return Encode({.kind = Kind::kWelcome, .method = {}, .payload = payload});
}

std::string EncodeRefusal(VersionRange range) {
  const std::string payload = RangeBytes(range);
  return Encode({.kind = Kind::kRefusal, .method = {}, .payload = payload});
}

Result<VersionRange> DecodeRange(std::string_view payload) {
  ByteReader in(payload);
  VersionRange range;
  range.lowest = in.Get<uint8_t>();
  range.highest = in.Get<uint8_t>();
  // More bytes may follow in a later version's hello.
  if (!in.ok() || range.lowest > range.highest) return Corrupt("handshake without a version range");
  return range;
}

Result<uint8_t> Negotiate(VersionRange ours, VersionRange theirs) {
  const uint8_t chosen = std::min(ours.highest, theirs.highest);
  if (chosen >= std::max(ours.lowest, theirs.lowest)) return chosen;
  return Status(Code::kUnsupported, Str("RPC protocol version mismatch: this side speaks version ",
                                        RangeText(ours), ", the peer ", RangeText(theirs)));
}

}  // namespace moonpool::rpc
