#pragma once

// What an engine costs in memory, measured on this process: at rest, for each registered region, and over many transfers.
// Threads: one caller.

#include <cstdint>

#include "base/status.h"

namespace moonpool::bench {

struct MemoryCost {
  uint64_t rest_bytes = 0;      // resident, of a process with an engine and nothing else
  double region_bytes = 0;      // growth of the resident size for each registered region
  double register_seconds = 0;  // for all of them
  double growth_bytes = 0;      // of the resident size over the second half of the transfers
  uint64_t regions = 0;
  uint64_t transfers = 0;
};

Result<MemoryCost> MeasureMemory(uint64_t regions, uint64_t transfers);

}  // namespace moonpool::bench
