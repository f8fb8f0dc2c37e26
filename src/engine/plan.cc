#include "engine/plan.h"

#include <algorithm>
#include <iomanip>

#include "base/str.h"
#include "engine/options.h"

namespace moonpool::engine {
namespace {

// The smallest slice that is worth cutting off a group to have several.
constexpr uint64_t kSpreadBytesMin = uint64_t{256} * 1024;

std::string Hex(uint64_t value) { return Str("0x", std::hex, value); }

Rights Need(transport::Op op) {
  return op == transport::Op::kRead ? Rights::kRead : Rights::kWrite;
}

Status Missing(size_t index, uint64_t address, uint64_t size, transport::Op op) {
  return Status(Code::kNotFound,
                Str("descriptor ", index, ": remote range ", Hex(address), " + ", size,
                    " bytes is not inside a region that the peer offers for ",
                    op == transport::Op::kRead ? "reading" : "writing"));
}

// Builds the plan piece by piece; closes a slice when the next piece does not fit.
class Builder {
 public:
  Builder(Plan& plan, const PlanLimits& limits, uint64_t target)
      : plan_(plan), limits_(limits), target_(target) {}

  void Add(uint64_t local, uint64_t remote, uint64_t size, const RegionKey& key) {
    while (size > 0) {
      uint64_t room = target_ - slice_.bytes;
      if (room == 0 || (slice_.pieces == limits_.slice_pieces && !Extends(local, remote, key))) {
        CloseSlice();
        room = target_;
      }
      const uint64_t take = std::min(size, room);
      Append(local, remote, static_cast<uint32_t>(take), key);
      local += take;
      remote += take;
      size -= take;
    }
  }

  void CloseSlice() {
    if (slice_.pieces == 0) return;
    plan_.slices.push_back(slice_);
    slice_ = PlannedSlice{};
    slice_.first_piece = static_cast<uint32_t>(plan_.pieces.size());
    slice_.first_key = static_cast<uint32_t>(plan_.keys.size());
  }

 private:
  bool Extends(uint64_t local, uint64_t remote, const RegionKey& key) const {
    if (slice_.pieces == 0) return false;
    const transport::Piece& last = plan_.pieces.back();
    return last.local + last.size == local && last.remote + last.size == remote &&
           plan_.keys[slice_.first_key + last.key] == key;
  }

  void Append(uint64_t local, uint64_t remote, uint32_t size, const RegionKey& key) {
    slice_.bytes += size;
    if (Extends(local, remote, key)) {
      plan_.pieces.back().size += size;
      return;
    }
    plan_.pieces.push_back({local, remote, size, KeyIndex(key)});
    ++slice_.pieces;
  }

  // Pieces of one slice mostly share the last key; a short scan finds the others, as a slice has few regions.
  uint32_t KeyIndex(const RegionKey& key) {
    for (uint32_t i = slice_.keys; i > 0; --i) {
      if (plan_.keys[slice_.first_key + i - 1] == key) return i - 1;
    }
    plan_.keys.push_back(key);
    return slice_.keys++;
  }

  Plan& plan_;
  const PlanLimits& limits_;
  const uint64_t target_;
  PlannedSlice slice_;
};

uint64_t SliceTarget(uint64_t total, const PlanLimits& limits) {
  const uint64_t share = (total + limits.spread - 1) / std::max<uint32_t>(limits.spread, 1);
  return std::min(limits.slice_bytes, std::max(share, kSpreadBytesMin));
}

}  // namespace

const RegionInfo* RegionView::Find(uint64_t address, uint64_t size) const {
  const auto after = std::upper_bound(
      regions.begin(), regions.end(), address,
      [](uint64_t value, const RegionInfo& region) { return value < region.address; });
  if (after == regions.begin()) return nullptr;
  const RegionInfo& region = *std::prev(after);
  return RangeInside(address, size, region.address, region.size) ? &region : nullptr;
}

Status CheckRanges(const Ranges& ranges) {
  const size_t count = ranges.lengths.size();
  if (ranges.local.size() != count || ranges.remote.size() != count) {
    return Status(Code::kInvalidArgument,
                  Str("local, remote and lengths must be equally long; they have ",
                      ranges.local.size(), ", ", ranges.remote.size(), " and ", count, " entries"));
  }
  for (size_t i = 0; i < count; ++i) {
    const uint64_t size = ranges.lengths[i];
    if (size == 0 || size > kDescriptorBytesMax) {
      return Status(Code::kInvalidArgument, Str("descriptor ", i, ": length ", size,
                                                "; allowed 1 .. ", kDescriptorBytesMax));
    }
    if (ranges.local[i] > UINT64_MAX - size) {
      return Status(Code::kInvalidArgument,
                    Str("descriptor ", i, ": local address ", Hex(ranges.local[i]), " + ", size,
                        " bytes wraps 64 bits"));
    }
    if (ranges.remote[i] > UINT64_MAX - size) {
      return Status(Code::kInvalidArgument,
                    Str("descriptor ", i, ": remote address ", Hex(ranges.remote[i]), " + ", size,
                        " bytes wraps 64 bits"));
    }
  }
  return Status::Ok();
}

Result<Plan> MakePlan(const Ranges& ranges, transport::Op op, const RegionView& view,
                      const PlanLimits& limits) {
  uint64_t total = 0;
  for (const uint64_t size : ranges.lengths) total += size;
  Plan plan;
  plan.pieces.reserve(ranges.lengths.size());
  Builder builder(plan, limits, SliceTarget(total, limits));
  const Rights need = Need(op);
  const RegionInfo* region = nullptr;
  for (size_t i = 0; i < ranges.lengths.size(); ++i) {
    const uint64_t remote = ranges.remote[i];
    const uint64_t size = ranges.lengths[i];
    if (region == nullptr || !RangeInside(remote, size, region->address, region->size)) {
      region = view.Find(remote, size);
      if (region == nullptr || !Allows(region->rights, need)) return Missing(i, remote, size, op);
    }
    builder.Add(ranges.local[i], remote, size, region->key);
  }
  builder.CloseSlice();
  return plan;
}

Status RefreshKeys(Plan& plan, const PlannedSlice& slice, transport::Op op,
                   const RegionView& view) {
  for (uint32_t i = 0; i < slice.pieces; ++i) {
    const transport::Piece& piece = plan.pieces[slice.first_piece + i];
    const RegionInfo* region = view.Find(piece.remote, piece.size);
    if (region == nullptr || !Allows(region->rights, Need(op)))
      return Missing(i, piece.remote, piece.size, op);
    plan.keys[slice.first_key + piece.key] = region->key;
  }
  return Status::Ok();
}

}  // namespace moonpool::engine
