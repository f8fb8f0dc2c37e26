#pragma once

// The messages between processes of one host and the address blob, as values; docs/formats/local.md
// has the bytes. Each message is one packet of a SOCK_SEQPACKET socket, so nothing is ever split or
// joined. A decoder accepts exactly what an encoder makes and returns false for all else; the
// encoders of the data path write into the caller's buffer.
//
// Not responsible for: sockets, descriptors that travel beside a message.
// Threads: values and pure functions.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moonpool::local {

inline constexpr uint32_t kMagic = 0x4c4c504d;  // "MPLL"
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kPiecesMax = 512;
inline constexpr size_t kKeysMax = 512;
inline constexpr size_t kSourcesMax = 64;
inline constexpr uint64_t kSliceBytes = 1 << 20;
inline constexpr size_t kReasonMax = 200;
inline constexpr size_t kMessageMax = size_t{24} * 1024;  // a full write is 21,536 bytes
inline constexpr uint16_t kNoSource = 0xffff;

using Token = std::array<uint8_t, 16>;

// Where a process is; two that differ cannot share memory.
struct Host {
  Token boot{};                // /proc/sys/kernel/random/boot_id
  uint64_t net_namespace = 0;  // inode; abstract sockets are seen inside one only
  uint64_t pid_namespace = 0;
  friend bool operator==(const Host&, const Host&) = default;
};

struct Address {
  Host host;
  uint32_t pid = 0;  // in its own namespace; for messages
  Token socket{};    // the abstract name is "moonpool-" and this in hexadecimal
  transport::NodeId id;
  friend bool operator==(const Address&, const Address&) = default;
};
std::string EncodeAddress(const Address& address);
Result<Address> DecodeAddress(std::string_view blob);

enum class Kind : uint32_t {
  kHello = 1,     // connector -> owner, first
  kWelcome = 2,   // the answer; with the region board's descriptor if asked for
  kWrite = 3,     // connector -> owner: pull these
  kReply = 4,     // the answer
  kGetArena = 5,  // connector -> owner: that arena's descriptor, please
  kArena = 6,     // either: an arena, with its descriptor; size 0 and none: not to be had
  kDropArena = 7  // either: the arena is gone, unmap it
};
// The kind of a message; 0 when it is too short to have one.
uint32_t KindOf(std::string_view message);

// A token at an address of the sender's memory: reading it there proves which process one reads.
struct Cell {
  uint64_t address = 0;
  Token token{};
  friend bool operator==(const Cell&, const Cell&) = default;
};

struct Hello {
  uint32_t version = kVersion;
  bool wants_board = false;
  transport::NodeId from;
  transport::NodeId to;  // whom the connector means
  Cell cell;
  friend bool operator==(const Hello&, const Hello&) = default;
};
std::string EncodeHello(const Hello& hello);
bool DecodeHello(std::string_view message, Hello* hello);

struct Welcome {
  uint32_t version = kVersion;
  Code code = Code::kOk;
  int32_t cma_error = 0;  // why the owner cannot read the connector's memory, or 0
  transport::NodeId id;
  Cell cell;
  int64_t clock = 0;  // nanoseconds of CLOCK_BOOTTIME
  std::string reason;
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
std::string EncodeWelcome(const Welcome& welcome);
bool DecodeWelcome(std::string_view message, Welcome* welcome);

// The structs below are the bytes themselves (little-endian, no padding).
struct WriteHead {
  Kind kind = Kind::kWrite;
  uint16_t sources = 0;
  uint16_t keys = 0;
  uint32_t pieces = 0;
  uint32_t zero = 0;
  uint64_t id = 0;
  int64_t deadline = 0;  // nanoseconds of CLOCK_BOOTTIME; the maximum: none
};
struct WireSource {  // an arena of the writer that pieces lie in
  uint32_t arena = 0;
  uint32_t zero = 0;
  uint64_t base = 0;  // address of its first byte in the writer
};
struct WirePiece {
  uint64_t remote = 0;  // in the owner
  uint64_t local = 0;   // in the writer
  uint32_t size = 0;
  uint16_t key = 0;
  uint16_t source = kNoSource;
};
static_assert(sizeof(WriteHead) == 32 && sizeof(WireSource) == 16 && sizeof(WirePiece) == 24 &&
              sizeof(RegionKey) == 16);
static_assert(sizeof(WriteHead) + kSourcesMax * sizeof(WireSource) + kKeysMax * sizeof(RegionKey) +
                  kPiecesMax * sizeof(WirePiece) <=
              kMessageMax);

// Its vectors are reused from message to message. What a decoder promises: counts within bounds,
// at least one piece and key, every index in range, at most kSliceBytes in all. Sizes may be 0 and
// ranges may wrap: the region check answers those.
struct Write {
  uint64_t id = 0;
  int64_t deadline = 0;
  std::vector<WireSource> sources;
  std::vector<RegionKey> keys;
  std::vector<WirePiece> pieces;
};
// Requires: within the bounds. Returns the bytes written. `out` has room for kMessageMax.
size_t EncodeWrite(const Write& write, char* out);
bool DecodeWrite(std::string_view message, Write* write);

struct Reply {
  Kind kind = Kind::kReply;
  Code code = Code::kOk;  // kAgain: lost the arena; send it and the request again
  std::array<uint8_t, 3> zero{};
  uint64_t id = 0;
};
struct ArenaMessage {
  Kind kind = Kind::kArena;  // kGetArena, kArena or kDropArena
  uint32_t number = 0;
  uint64_t size = 0;
};
static_assert(sizeof(Reply) == 16 && sizeof(ArenaMessage) == 16);
template <typename T>
std::string_view BytesOf(const T& message) {
  return {reinterpret_cast<const char*>(&message), sizeof(T)};
}
bool DecodeReply(std::string_view message, Reply* reply);
bool DecodeArena(std::string_view message, ArenaMessage* arena);

}  // namespace moonpool::local
