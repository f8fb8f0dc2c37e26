#pragma once

// The RPC wire format: length-prefixed frames over one TCP connection, version negotiation first.
// frame_test.cc has golden bytes.
//
// A frame is a header of kHeaderBytes, the method's name, then the payload; integers little-endian:
//
//   0 magic "MPR1"   4 version (u8)   5 kind (u8)        6 flags (u16, 0)   8 request id (u64)
//   16 timeout ms of a request, code of a reply (u32)   20 method bytes (u16)
//   22 reserved (u16, 0)   24 payload bytes (u32)
//
// The client's first frame is a hello whose payload is {lowest, highest} version it speaks (two
// bytes); the server answers with a welcome (payload: the chosen version) or a refusal (payload:
// its own range) and closes. The hello, the welcome and the refusal have version 0 and never
// change. A payload is opaque here; a reply whose code is not 0 carries the message as its payload.
//
// Threads: values and pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace moonpool::rpc {

inline constexpr size_t kHeaderBytes = 28;
inline constexpr size_t kMethodBytesMax = 128;
inline constexpr size_t kFrameBytesMax = 64u << 20;  // default bound on method and payload

struct VersionRange {
  uint8_t lowest = 1;
  uint8_t highest = 1;
  friend bool operator==(const VersionRange&, const VersionRange&) = default;
};
inline constexpr VersionRange kVersions{1, 1};

enum class Kind : uint8_t { kHello = 1, kWelcome = 2, kRefusal = 3, kRequest = 4, kReply = 5 };

// One frame. The views borrow from the bytes that were decoded.
struct Frame {
  Kind kind = Kind::kHello;
  uint8_t version = 0;
  uint64_t id = 0;
  uint32_t timeout_ms = 0;  // of a request; 0: no deadline
  Code code = Code::kOk;    // of a reply
  std::string_view method{};
  std::string_view payload{};

  size_t size() const { return kHeaderBytes + method.size() + payload.size(); }
};

// Requires: the method has kMethodBytesMax bytes at most, the payload less than 4 GiB.
std::string Encode(const Frame& frame);

// The first frame of `bytes`; empty if it is not all there yet. kCorrupt: these bytes are not, and
// will not become, a frame of ours, or it is larger than `bytes_max`; looked at as soon as the
// header is there, so that nobody waits for gigabytes. A code that this build does not know becomes
// kInternal.
Result<std::optional<Frame>> Decode(std::string_view bytes, size_t bytes_max = kFrameBytesMax);

std::string EncodeHello(VersionRange range);
std::string EncodeWelcome(uint8_t version);
std::string EncodeRefusal(VersionRange range);

// The range in a hello or a refusal.
Result<VersionRange> DecodeRange(std::string_view payload);

// The highest version that both speak. kUnsupported names both ranges.
Result<uint8_t> Negotiate(VersionRange ours, VersionRange theirs);

}  // namespace moonpool::rpc
