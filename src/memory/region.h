#pragma once

// Region: one contiguous registered range of memory, as values that travel. The table that owns the
// truth is memory/region_table.h. Threads: values.

#include <cstdint>

namespace moonpool {

// What others may do with a region. The owner itself may always do both.
enum class Rights : uint8_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };

inline bool Allows(Rights have, Rights need) {
  return (static_cast<uint8_t>(have) & static_cast<uint8_t>(need)) == static_cast<uint8_t>(need);
}

// Names one registration of one region and proves that its holder was told about it. Stale after
// deregistration: the slot's generation has moved on, and the access key is random.
struct RegionKey {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint64_t access_key = 0;
  friend bool operator==(const RegionKey&, const RegionKey&) = default;
};

struct RegionInfo {
  uint64_t address = 0;  // in the owner's address space
  uint64_t size = 0;     // bytes, at least 1
  Rights rights = Rights::kNone;
  RegionKey key;
  // Where the bytes also are: offset in one of the owner's shareable arenas (memfd), or no arena
  // (kNoArena).
  uint32_t arena = 0xffffffff;
  uint64_t arena_offset = 0;
  friend bool operator==(const RegionInfo&, const RegionInfo&) = default;
};
inline constexpr uint32_t kNoArena = 0xffffffff;

// True when [address, address + size) lies in [base, base + extent), with no wrap of 64 bits.
inline bool RangeInside(uint64_t address, uint64_t size, uint64_t base, uint64_t extent) {
  return address >= base && size <= extent && address - base <= extent - size;
}

}  // namespace moonpool
