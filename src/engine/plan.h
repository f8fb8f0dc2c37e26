#pragma once

// Planning: a pure function from what a group of transfers asks for and where the peer's regions are, to pieces (one
// contiguous range here and there) and slices (what one path carries). Neighbouring descriptors are merged, large ones
// cut, many small ones share a slice.
//
// Threads: pure functions; the plan is a value.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moonpool::engine {

// A peer's regions as last heard, by address. Lookup is O(log n).
struct RegionView {
  uint64_t version = 0;
  std::vector<RegionInfo> regions;
  // The region that holds [address, address + size), or null.
  const RegionInfo* Find(uint64_t address, uint64_t size) const;
};

struct Ranges {
  std::span<const uint64_t> local;
  std::span<const uint64_t> remote;
  std::span<const uint64_t> lengths;
};

struct PlanLimits {
  uint64_t slice_bytes = 1 << 20;
  uint32_t slice_pieces = 512;
  uint32_t spread =
      1;  // slices wanted at least, when the group is large enough to be worth spreading
};

struct PlannedSlice {
  uint32_t first_piece = 0;
  uint32_t pieces = 0;
  uint32_t first_key = 0;
  uint32_t keys = 0;
  uint64_t bytes = 0;
};

struct Plan {
  std::vector<transport::Piece> pieces;
  std::vector<RegionKey> keys;
  std::vector<PlannedSlice> slices;
};

// kNotFound: a remote range is in no region of the view with the rights that `op` needs (the view may be old); names
// the descriptor. Requires: ranges were checked (CheckRanges).
Result<Plan> MakePlan(const Ranges& ranges, transport::Op op, const RegionView& view,
                      const PlanLimits& limits);

// kInvalidArgument: arrays of unequal length, a length of 0 or above the bound, an address that wraps.
Status CheckRanges(const Ranges& ranges);

// The keys of one slice's pieces anew from a newer view. kNotFound as above.
Status RefreshKeys(Plan& plan, const PlannedSlice& slice, transport::Op op, const RegionView& view);

}  // namespace moonpool::engine
