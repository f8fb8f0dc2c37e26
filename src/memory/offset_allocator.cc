#include "memory/offset_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/str.h"

namespace moonpool::memory {
namespace {

// How many gaps of the size's own bin are tried when no larger bin has one.
constexpr int kTries = 16;
// An index of this size may grow to fill some large pages.
constexpr size_t kHugeFrom = 8 << 20;

Status Bad(const char* field, uint64_t value, const char* allowed) {
  return Status(Code::kInvalidArgument, Str(field, ": ", value, ", must be ", allowed));
}

uint64_t RoundUp(uint64_t value, uint64_t power_of_two) {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}

}  // namespace

struct OffsetAllocator::Parts {
  uint64_t granularity;
  uint32_t granules;
  uint32_t extents_max;
  std::unique_ptr<Node[], Unmap> nodes;
};

void OffsetAllocator::Unmap::operator()(void* nodes) const { munmap(nodes, size); }

Result<std::unique_ptr<OffsetAllocator>> OffsetAllocator::Create(
    const OffsetAllocatorOptions& options) {
  if (!std::has_single_bit(options.granularity)) {
    return Bad("granularity", options.granularity, "a power of two");
  }
  if (options.capacity < options.granularity) {
    return Bad("capacity", options.capacity, "at least the granularity");
  }
  if (options.capacity / options.granularity >= kNone) {
    return Bad("capacity", options.capacity, "below 2^32 times the granularity");
  }
  if (options.extents_max == 0 || options.extents_max > (1u << 30)) {
    return Bad("extents_max", options.extents_max, "1 .. 2^30");
  }
  const auto granules = static_cast<uint32_t>(options.capacity / options.granularity);
  const uint32_t extents_max = std::min(options.extents_max, granules);
  // Pages are taken when they are first used; large ones, because extents are visited in no order.
  const size_t size = (2 * size_t{extents_max} + 1) * sizeof(Node);
  void* nodes = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (nodes == MAP_FAILED) {
    return Status(Code::kExhausted, Str("index of ", size, " bytes: ", std::strerror(errno)));
  }
  if (size >= kHugeFrom) madvise(nodes, size, MADV_HUGEPAGE);
  return std::make_unique<OffsetAllocator>(
      Parts{options.granularity, granules, extents_max, {static_cast<Node*>(nodes), {size}}});
}

OffsetAllocator::OffsetAllocator(Parts parts)
    : granularity_(parts.granularity),
      shift_(std::countr_zero(parts.granularity)),
      granules_(parts.granules),
      extents_max_(parts.extents_max),
      nodes_(std::move(parts.nodes)) {
  heads_.fill(kNone);
  const uint32_t whole = TakeNode();
  Node& node = nodes_[whole];
  node.offset = 0;
  node.size = granules_;
  node.previous = kNone;
  node.next = kNone;
  node.previous_free = false;
  node.next_free = false;
  InsertGap(whole);
}

uint32_t OffsetAllocator::BinOf(uint32_t size) {
  if (size < kSubBins) return size;
  const int log = std::bit_width(size) - 1;
  const uint32_t sub = (size >> (log - kSubBits)) & (kSubBins - 1);
  return static_cast<uint32_t>(log - kSubBits + 1) * kSubBins + sub;
}

uint32_t OffsetAllocator::BinThatFits(uint64_t size) {
  if (size < kSubBins) return static_cast<uint32_t>(size);
  const int log = std::bit_width(size) - 1;
  const uint64_t rounded = size + (uint64_t{1} << (log - kSubBits)) - 1;
  return rounded > UINT32_MAX ? kBins : BinOf(static_cast<uint32_t>(rounded));
}

uint32_t OffsetAllocator::FindGap(uint64_t size) const {
  const uint32_t bin = BinThatFits(size);
  if (bin < kBins) {
    const uint32_t level = bin / kSubBins;
    const uint32_t here = bins_[level] & (~uint32_t{0} << (bin % kSubBins));
    if (here != 0) {
      return heads_[level * kSubBins + static_cast<uint32_t>(std::countr_zero(here))];
    }
    const uint32_t above = level + 1 < kLevels ? levels_ & (~uint32_t{0} << (level + 1)) : 0;
    if (above != 0) {
      const auto up = static_cast<uint32_t>(std::countr_zero(above));
      return heads_[up * kSubBins + static_cast<uint32_t>(std::countr_zero(bins_[up]))];
    }
  }
  // The bin of the size itself may hold some that are large enough.
  if (size > granules_) return kNone;
  uint32_t index = heads_[BinOf(static_cast<uint32_t>(size))];
  for (int tries = 0; tries < kTries && index != kNone; ++tries) {
    if (nodes_[index].size >= size) return index;
    index = nodes_[index].bin_next;
  }
  return kNone;
}

uint32_t OffsetAllocator::FindAlignedGap(uint64_t size, uint64_t alignment) const {
  const uint32_t index = FindGap(size);
  if (index == kNone || alignment == 1) return index;
  const Node& node = nodes_[index];
  const uint64_t skipped = RoundUp(node.offset, alignment) - node.offset;
  if (skipped + size <= node.size) return index;
  return FindGap(size + alignment - 1);
}

void OffsetAllocator::InsertGap(uint32_t index) {
  Node& node = nodes_[index];
  const uint32_t bin = BinOf(node.size);
  const uint32_t head = heads_[bin];
  node.used = false;
  if (node.previous != kNone) nodes_[node.previous].next_free = true;
  if (node.next != kNone) nodes_[node.next].previous_free = true;
  node.bin_previous = kNone;
  node.bin_next = head;
  if (head != kNone) nodes_[head].bin_previous = index;
  heads_[bin] = index;
  bins_[bin / kSubBins] |= uint32_t{1} << (bin % kSubBins);
  levels_ |= uint32_t{1} << (bin / kSubBins);
  ++gaps_;
}

void OffsetAllocator::RemoveGap(uint32_t index) {
  const Node& node = nodes_[index];
  if (node.previous != kNone) nodes_[node.previous].next_free = false;
  if (node.next != kNone) nodes_[node.next].previous_free = false;
  if (node.bin_next != kNone) nodes_[node.bin_next].bin_previous = node.bin_previous;
  if (node.bin_previous != kNone) {
    nodes_[node.bin_previous].bin_next = node.bin_next;
  } else {
    const uint32_t bin = BinOf(node.size);
    heads_[bin] = node.bin_next;
    if (node.bin_next == kNone) {
      const uint32_t level = bin / kSubBins;
      bins_[level] &= ~(uint32_t{1} << (bin % kSubBins));
      if (bins_[level] == 0) levels_ &= ~(uint32_t{1} << level);
    }
  }
  --gaps_;
}

uint32_t OffsetAllocator::TakeNode() {
  if (unused_ != kNone) {
    const uint32_t index = unused_;
    unused_ = nodes_[index].bin_next;
    return index;
  }
  // Extents are at most extents_max_, gaps at most one more: no two of them are neighbours.
  MOONPOOL_CHECK(nodes_touched_ < 2 * uint64_t{extents_max_} + 1);
  nodes_[nodes_touched_].generation = 0;
  return nodes_touched_++;
}

void OffsetAllocator::ReturnNode(uint32_t index) {
  nodes_[index].used = false;
  nodes_[index].bin_next = unused_;
  unused_ = index;
}

void OffsetAllocator::SplitAfter(uint32_t index, uint32_t size) {
  const uint32_t rest = TakeNode();
  Node& node = nodes_[index];
  Node& gap = nodes_[rest];
  gap.offset = node.offset + size;
  gap.size = node.size - size;
  gap.previous = index;
  gap.next = node.next;
  gap.previous_free = false;
  gap.next_free = false;
  if (node.next != kNone) nodes_[node.next].previous = rest;
  node.next = rest;
  node.size = size;
  InsertGap(rest);
}

Result<Extent> OffsetAllocator::Allocate(uint64_t size, uint64_t alignment) {
  if (size == 0) return Bad("size", size, "at least 1");
  if (!std::has_single_bit(alignment)) return Bad("alignment", alignment, "a power of two");
  if (extents_ == extents_max_) {
    return Status(Code::kExhausted, "all " + std::to_string(extents_max_) + " extents are live");
  }
  const uint64_t granules = (size >> shift_) + ((size & (granularity_ - 1)) != 0 ? 1 : 0);
  const uint64_t aligned = std::max<uint64_t>(alignment >> shift_, 1);
  // What is larger than all of the space can be in no sum below.
  const bool possible = granules <= granules_ && aligned <= granules_;
  uint32_t index = possible ? FindAlignedGap(granules, aligned) : kNone;
  if (index == kNone) {
    return Status(Code::kExhausted, "no gap for " + std::to_string(size) + " bytes, " +
                                        std::to_string((granules_ - allocated_) << shift_) +
                                        " are free in all");
  }
  RemoveGap(index);
  const auto skipped =
      static_cast<uint32_t>(RoundUp(nodes_[index].offset, aligned) - nodes_[index].offset);
  if (skipped > 0) {
    SplitAfter(index, skipped);
    const uint32_t behind = nodes_[index].next;
    RemoveGap(behind);
    InsertGap(index);
    index = behind;
  }
  Node& node = nodes_[index];
  node.used = true;
  if (node.size > granules) SplitAfter(index, static_cast<uint32_t>(granules));
  ++node.generation;
  ++extents_;
  allocated_ += granules;
  return Extent{uint64_t{node.offset} << shift_, granules << shift_, {index, node.generation}};
}

void OffsetAllocator::Absorb(uint32_t index, uint32_t next) {
  Node& node = nodes_[index];
  const Node& gone = nodes_[next];
  node.size += gone.size;
  node.next = gone.next;
  node.next_free = gone.next_free;
  if (gone.next != kNone) nodes_[gone.next].previous = index;
  ReturnNode(next);
}

Code OffsetAllocator::Free(ExtentHandle handle) {
  if (handle.index >= nodes_touched_) return Code::kStale;
  Node& node = nodes_[handle.index];
  if (!node.used || node.generation != handle.generation) return Code::kStale;
  allocated_ -= node.size;
  --extents_;
  uint32_t index = handle.index;
  if (node.previous_free) {
    const uint32_t previous = node.previous;
    RemoveGap(previous);
    Absorb(previous, index);
    index = previous;
  }
  if (nodes_[index].next_free) {
    const uint32_t next = nodes_[index].next;
    RemoveGap(next);
    Absorb(index, next);
  }
  InsertGap(index);
  return Code::kOk;
}

std::optional<Extent> OffsetAllocator::Find(ExtentHandle handle) const {
  if (handle.index >= nodes_touched_) return std::nullopt;
  const Node& node = nodes_[handle.index];
  if (!node.used || node.generation != handle.generation) return std::nullopt;
  return Extent{uint64_t{node.offset} << shift_, uint64_t{node.size} << shift_, handle};
}

OffsetAllocatorUsage OffsetAllocator::Usage() const {
  OffsetAllocatorUsage usage;
  usage.capacity = uint64_t{granules_} << shift_;
  usage.allocated = allocated_ << shift_;
  usage.extents = extents_;
  usage.gaps = gaps_;
  if (levels_ != 0) {
    const auto level = static_cast<uint32_t>(std::bit_width(levels_) - 1);
    const auto sub = static_cast<uint32_t>(std::bit_width(bins_[level]) - 1);
    usage.largest_free = uint64_t{nodes_[heads_[level * kSubBins + sub]].size} << shift_;
  }
  return usage;
}

void OffsetAllocator::CheckInvariants() const {
  uint64_t offset = 0;
  uint64_t allocated = 0;
  uint32_t extents = 0;
  uint32_t gaps = 0;
  // Node 0 is the first in space for ever: it is never absorbed.
  uint32_t previous = kNone;
  for (uint32_t index = 0; index != kNone; index = nodes_[index].next) {
    const Node& node = nodes_[index];
    MOONPOOL_CHECK(node.offset == offset);
    MOONPOOL_CHECK(node.size > 0);
    MOONPOOL_CHECK(node.previous == previous);
    const bool two_gaps = previous != kNone && !node.used && !nodes_[previous].used;
    MOONPOOL_CHECK(!two_gaps);
    const bool previous_free = previous != kNone && !nodes_[previous].used;
    const bool next_free = node.next != kNone && !nodes_[node.next].used;
    MOONPOOL_CHECK(node.previous_free == previous_free);
    MOONPOOL_CHECK(node.next_free == next_free);
    offset += node.size;
    allocated += node.used ? node.size : 0;
    ++(node.used ? extents : gaps);
    previous = index;
  }
  MOONPOOL_CHECK(offset == granules_);
  MOONPOOL_CHECK(allocated == allocated_);
  MOONPOOL_CHECK(extents == extents_);
  MOONPOOL_CHECK(gaps == gaps_);
  uint32_t hanging = 0;
  for (uint32_t bin = 0; bin < kBins; ++bin) {
    const bool bit = (bins_[bin / kSubBins] >> (bin % kSubBins) & 1) != 0;
    MOONPOOL_CHECK(bit == (heads_[bin] != kNone));
    for (uint32_t index = heads_[bin]; index != kNone; index = nodes_[index].bin_next) {
      MOONPOOL_CHECK(!nodes_[index].used);
      MOONPOOL_CHECK(BinOf(nodes_[index].size) == bin);
      ++hanging;
    }
  }
  MOONPOOL_CHECK(hanging == gaps_);
  for (uint32_t level = 0; level < kLevels; ++level) {
    MOONPOOL_CHECK(((levels_ >> level & 1) != 0) == (bins_[level] != 0));
  }
}

}  // namespace moonpool::memory
