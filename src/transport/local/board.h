#pragma once

// The region board: what a reader must know of the owner's regions, in memory that the owner
// writes and every peer of the host maps read-only. A reader looks at a region's entry before a
// step and at its word again after: when the region was closed meanwhile, the bytes do not count.
//
// The access keys are not on it, only a keyed hash (SipHash) of each: who sees the board still
// cannot make a key that the owner's region table accepts.
//
// Invariants:
// 1. An entry's word is 0 (closed) while its other fields change, and generation << 32 | 1 while
//    the region is open. The owner closes it before Deregister returns.
// 2. A board never shrinks (sealed), and only its owner can write it.
//
// Threads: RegionBoard is called under the region table's lock; BoardView is thread-safe.
// Ownership: both own their mappings.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "memory/region.h"
#include "memory/region_table.h"

namespace moonpool::local {

struct BoardPage;  // the layout, in board.cc

// The owner's side.
class RegionBoard final : public memory::RegionObserver {
 public:
  // kUnsupported: the kernel has no sealed memfd.
  static Result<std::unique_ptr<RegionBoard>> Create();
  ~RegionBoard() override;
  RegionBoard(const RegionBoard&) = delete;
  RegionBoard& operator=(const RegionBoard&) = delete;

  void RegionOpened(const RegionInfo& info) override;
  void RegionClosed(const RegionInfo& info) override;

  // From now on every reader is told kUnavailable. Thread-safe.
  void StopServing();

  // Opened for reading only; for SCM_RIGHTS.
  int fd() const { return fd_.get(); }

 private:
  RegionBoard(BoardPage* page, UniqueFd fd) : page_(page), fd_(std::move(fd)) {}
  BoardPage* const page_;
  const UniqueFd fd_;
};

// A peer's board.
class BoardView {
 public:
  // What Check found, for Still.
  struct Entry {
    uint64_t address = 0;
    uint64_t size = 0;
    uint32_t arena = kNoArena;
    uint64_t arena_offset = 0;
    uint64_t word = 0;
    uint32_t slot = 0;
  };

  // kInvalidArgument: the descriptor is not a board.
  static Result<std::unique_ptr<BoardView>> Map(int fd);
  ~BoardView();
  BoardView(const BoardView&) = delete;
  BoardView& operator=(const BoardView&) = delete;

  // kOk when `key` names an open region that may be read; fills `entry`. kStale, kInvalidArgument
  // (no right to read) or kUnavailable (the owner has stopped) otherwise.
  Code Check(const RegionKey& key, Entry* entry) const;
  // kOk when what Check found has held until now.
  Code Still(const Entry& entry) const;
  // True when some region lies in an arena, so that a peer can be read without CMA.
  bool AnyArena() const;

 private:
  explicit BoardView(const BoardPage* page) : page_(page) {}
  const BoardPage* const page_;
};

// SipHash-2-4 of one 64-bit word under a 128-bit key.
uint64_t SipHash(const std::array<uint64_t, 2>& key, uint64_t word);

}  // namespace moonpool::local
