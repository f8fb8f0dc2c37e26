#pragma once

// The processor's ways to compute CRC-32C. Callers use base/crc32c.h; this is what it chooses from.
// Threads: pure functions.

#include <cstddef>
#include <cstdint>

namespace moonpool::port {

struct Crc32cKernel {
  // On the register's value: no inversion before or after.
  uint32_t (*extend)(uint32_t state, const uint8_t* data, size_t size) = nullptr;
  const char* name = nullptr;
};

// The fastest one that this processor runs; all null when it has none.
Crc32cKernel BestCrc32cKernel();

// The n-th that this processor runs, from the fastest (tests and benches look at each); null behind
// the last.
Crc32cKernel Crc32cKernelAt(int n);

}  // namespace moonpool::port
