#pragma once

// Pulling bytes from another process into this one, one bounded step at a time, each fenced by a
// deadline (base/fence.h): from a mapping of its arena, or by process_vm_readv. The reader of a
// read and the owner of a write both use it.
//
// A step moves at most kStepBytes, so that it ends within the settle time of the contract whenever
// it began. Threads: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "transport/local/identity.h"

namespace moonpool::local {

inline constexpr size_t kStepBytes = size_t{256} * 1024;
inline constexpr size_t kStepMoves = 128;

struct Move {
  std::byte* to = nullptr;
  const std::byte* mapped = nullptr;  // where the bytes are mapped here, or null: use CMA
  uint64_t from = 0;                  // address in the other process
  size_t size = 0;
};

// Moves everything. Requires: at most kStepMoves moves, kStepBytes bytes.
// kTimedOut: the deadline came first. kInvalidArgument: a range is not mapped memory (EFAULT), on
// either side. kUnavailable: the process is gone. kUnsupported: the kernel refuses CMA.
// Whatever the outcome, nothing is stored after it returns.
Code PullStep(const Origin& origin, std::span<const Move> moves, Time deadline);

}  // namespace moonpool::local
