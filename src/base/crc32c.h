#pragma once

// CRC-32C (Castagnoli, RFC 3720 appendix B.4), with the fastest instructions that the processor has
// (SSE4.2 crc32 on three interleaved streams, or VPCLMULQDQ folding), a table otherwise. Threads:
// pure functions.

#include <cstddef>
#include <cstdint>

namespace moonpool {

// The checksum of `size` bytes that follow bytes whose checksum is `crc` (0 at the beginning).
uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

// The table implementation, the reference of the tests.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t size);

// "vpclmulqdq" (512 bits), "vpclmulqdq-256", "sse4.2", "sse4.2-serial" or "table": what Crc32c uses
// here.
const char* Crc32cImplementation();

}  // namespace moonpool
