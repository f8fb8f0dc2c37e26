#pragma once

// OffsetAllocator: hands out extents of an abstract range [0, capacity) in constant time. It knows
// offsets, never touches the memory itself, and so serves host, device and file space alike.
//
// Two-level segregated fit (Masmano, Ripoll, Crespo and Real, "TLSF: a New Dynamic Memory Allocator
// for Real-Time Systems", ECRTS 2004): free extents hang in 896 bins of sizes within 1/32 of each
// other, bitmaps find the first bin that surely fits, what is left over is split off, and freed
// neighbours grow together at once, so that any freed space serves any other size.
//
// Not responsible for: growing, eviction, memory (memory/arena.h), persistence.
//
// Threads: thread-compatible. Cost: 32 bytes per extent and per gap, at most 64 * (extents_max + 1)
// bytes in all, taken as it is used. Errors: kInvalidArgument names the field; kExhausted says what
// is free.
//
//   MOONPOOL_ASSIGN_OR_RETURN(auto space, OffsetAllocator::Create({.capacity = 1 << 30}));
//   MOONPOOL_ASSIGN_OR_RETURN(Extent extent, space->Allocate(5000));
//   … base + extent.offset …
//   space->Free(extent.handle);

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"

namespace moonpool::memory {

// Names one allocation; stale once it has been freed.
struct ExtentHandle {
  uint32_t index = 0;
  uint32_t generation = 0;
  friend bool operator==(const ExtentHandle&, const ExtentHandle&) = default;
};

struct Extent {
  uint64_t offset = 0;
  uint64_t size = 0;  // as rounded up to the granularity
  ExtentHandle handle;
};

struct OffsetAllocatorOptions {
  uint64_t capacity = 0;           // bytes; rounded down to the granularity
  uint64_t granularity = 64;       // bytes, a power of two; capacity / granularity is below 2^32
  uint32_t extents_max = 1 << 20;  // live at once, 1 .. 2^30
};

struct OffsetAllocatorUsage {
  uint64_t capacity = 0;
  uint64_t allocated = 0;  // bytes
  uint64_t largest_free =
      0;                 // bytes; the largest size for which Allocate surely succeeds is within
                         // 1/32 of it
  uint32_t extents = 0;  // live
  uint32_t gaps = 0;     // free extents between them
};

class OffsetAllocator {
 public:
  static Result<std::unique_ptr<OffsetAllocator>> Create(const OffsetAllocatorOptions& options);

  // `alignment` of the offset: a power of two; smaller ones than the granularity mean that.
  Result<Extent> Allocate(uint64_t size, uint64_t alignment = 1);

  // kStale: not allocated (any more).
  Code Free(ExtentHandle handle);

  // The extent, or nothing when the handle is stale.
  std::optional<Extent> Find(ExtentHandle handle) const;

  OffsetAllocatorUsage Usage() const;

  // Ends the process unless the invariants hold (tests). Linear in the number of extents.
  // 1. Walking by `next` from the first node covers [0, capacity) without gap or overlap.
  // 2. No two neighbours are both free.
  // 3. A node's previous_free and next_free say what its neighbours are.
  // 4. A free node hangs in the bin of its size and nowhere else; a bit is set for each such bin.
  void CheckInvariants() const;

 private:
  struct Unmap {
    size_t size = 0;
    void operator()(void* nodes) const;
  };
  static constexpr uint32_t kNone = 0xffffffff;
  static constexpr int kSubBits = 5;
  static constexpr uint32_t kSubBins = 1 << kSubBits;
  static constexpr uint32_t kLevels = 32 - kSubBits + 1;
  static constexpr uint32_t kBins = kLevels * kSubBins;

  // Half a cache line. Sizes and offsets count granules.
  struct alignas(32) Node {
    uint32_t offset;
    uint32_t size;
    uint32_t previous;  // neighbours in space
    uint32_t next;
    uint32_t bin_previous;  // neighbours in the bin, while free; the next unused node
    uint32_t bin_next;
    uint32_t generation;  // grows with each allocation
    // What the neighbours are stands here too, so that they need not be read, only written: a read
    // that misses the caches is waited for, a write is not.
    bool used;
    bool previous_free;
    bool next_free;
  };

 public:
  // Only Create can make one: the options are good, the nodes are there.
  struct Parts;
  explicit OffsetAllocator(Parts parts);

 private:
  static uint32_t BinOf(uint32_t size);        // that holds `size`
  static uint32_t BinThatFits(uint64_t size);  // the first whose every member is as large
  uint32_t FindGap(uint64_t size) const;
  uint32_t FindAlignedGap(uint64_t size, uint64_t alignment) const;
  void InsertGap(uint32_t index);
  void RemoveGap(uint32_t index);
  uint32_t TakeNode();
  void ReturnNode(uint32_t index);
  // Cuts node `index` after `size` granules; the rest is a gap.
  void SplitAfter(uint32_t index, uint32_t size);
  void Absorb(uint32_t index, uint32_t next);

  const uint64_t granularity_;
  const int shift_;
  const uint32_t granules_;
  const uint32_t extents_max_;
  std::unique_ptr<Node[], Unmap> nodes_;  // 2 * extents_max_ + 1; touched in order
  uint32_t nodes_touched_ = 0;
  uint32_t unused_ = kNone;  // nodes returned, linked by bin_next
  uint32_t extents_ = 0;
  uint32_t gaps_ = 0;
  uint64_t allocated_ = 0;                // granules
  uint32_t levels_ = 0;                   // bit: the level has a bin that is not empty
  std::array<uint32_t, kLevels> bins_{};  // bit: the bin is not empty
  std::array<uint32_t, kBins> heads_{};
};

}  // namespace moonpool::memory
