#include "base/crc32c.h"

#include <array>

#include "base/port/crc32c_port.h"

namespace moonpool {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed, as the checksum is defined

// tables[k][b]: the register after byte b and then k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

uint32_t ExtendByTable(uint32_t state, const uint8_t* data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) {
    // Bytes are put together by shifts, so that the result is the same whatever the byte order.
    const uint32_t low = state ^ (uint32_t{data[0]} | uint32_t{data[1]} << 8 |
                                  uint32_t{data[2]} << 16 | uint32_t{data[3]} << 24);
    state = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^
            kTables[5][(low >> 16) & 0xff] ^ kTables[4][low >> 24] ^ kTables[3][data[4]] ^
            kTables[2][data[5]] ^ kTables[1][data[6]] ^ kTables[0][data[7]];
  }
  for (; size > 0; --size, ++data) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xff];
  return state;
}

const port::Crc32cKernel& Chosen() {
  static const port::Crc32cKernel kChosen = [] {
    const port::Crc32cKernel best = port::BestCrc32cKernel();
    return best.extend != nullptr ? best : port::Crc32cKernel{ExtendByTable, "table"};
  }();
  return kChosen;
}

}  // namespace

uint32_t Crc32c(uint32_t crc, const void* data, size_t size) {
  return ~Chosen().extend(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t size) {
  return ~ExtendByTable(~crc, static_cast<const uint8_t*>(data), size);
}

const char* Crc32cImplementation() { return Chosen().name; }

}  // namespace moonpool
