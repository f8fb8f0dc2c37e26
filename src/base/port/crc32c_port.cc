#include "base/port/crc32c_port.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>

namespace moonpool::port {
namespace {

// Polynomials over GF(2) modulo the Castagnoli polynomial, in the bit order of the checksum: bit 31
// stands for x^0.
constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr uint32_t MultiplyModulo(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    if ((a & (0x80000000u >> i)) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^n modulo the polynomial.
constexpr uint32_t PowerOfX(uint64_t n) {
  uint32_t result = 0x80000000u;
  uint32_t square = 0x40000000u;
  for (; n != 0; n >>= 1) {
    if ((n & 1) != 0) result = MultiplyModulo(result, square);
    square = MultiplyModulo(square, square);
  }
  return result;
}

uint64_t Load64(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// --- SSE4.2: the crc32 instruction takes 8 bytes per cycle but answers after three, so three
// streams run side by side and are put together with a carry-less multiplication.

__attribute__((target("sse4.2"))) uint32_t ExtendSerial(uint32_t state, const uint8_t* data,
                                                        size_t size) {
  uint64_t crc = state;
  for (; size >= 8; size -= 8, data += 8) crc = _mm_crc32_u64(crc, Load64(data));
  auto small = static_cast<uint32_t>(crc);
  for (; size > 0; --size, ++data) small = _mm_crc32_u8(small, *data);
  return small;
}

// state * x^(8 * bytes), where `factor` is x^(8 * bytes - 33): the reflected product of two 32-bit
// values carries one x, the crc32 instruction 32 more.
__attribute__((target("sse4.2,pclmul"))) inline uint32_t Shift(uint32_t state, uint32_t factor) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(factor)), 0);
  return static_cast<uint32_t>(_mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product))));
}

template <size_t Stream>
__attribute__((target("sse4.2,pclmul"))) inline uint32_t ThreeStreams(uint32_t state,
                                                                      const uint8_t* data) {
  constexpr uint32_t kOne = PowerOfX(8 * Stream - 33);
  constexpr uint32_t kTwo = PowerOfX(16 * Stream - 33);
  uint64_t a = state;
  uint64_t b = 0;
  uint64_t c = 0;
  for (size_t i = 0; i < Stream; i += 8) {
    a = _mm_crc32_u64(a, Load64(data + i));
    b = _mm_crc32_u64(b, Load64(data + Stream + i));
    c = _mm_crc32_u64(c, Load64(data + 2 * Stream + i));
  }
  return Shift(static_cast<uint32_t>(a), kTwo) ^ Shift(static_cast<uint32_t>(b), kOne) ^
         static_cast<uint32_t>(c);
}

__attribute__((target("sse4.2,pclmul"))) uint32_t ExtendInterleaved(uint32_t state,
                                                                    const uint8_t* data,
                                                                    size_t size) {
  constexpr size_t kLong = 1360;
  constexpr size_t kShort = 80;
  for (; size >= 3 * kLong; size -= 3 * kLong, data += 3 * kLong) {
    state = ThreeStreams<kLong>(state, data);
  }
  for (; size >= 3 * kShort; size -= 3 * kShort, data += 3 * kShort) {
    state = ThreeStreams<kShort>(state, data);
  }
  return ExtendSerial(state, data, size);
}

// --- Folding (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", 2009)
// with 256- or 512-bit vectors: a 128-bit lane A that stands D bits before B is replaced by
// B ^ A.low * x^(64 + D) ^ A.high * x^D; the reflected product carries one x by itself.

struct FoldFactor {
  uint64_t low;
  uint64_t high;
};
constexpr FoldFactor FactorFor(uint64_t bits) {
  return {uint64_t{PowerOfX(bits + 63)} << 32, uint64_t{PowerOfX(bits - 1)} << 32};
}

#define MOONPOOL_AVX512 __attribute__((target("avx512f,avx512vl,vpclmulqdq,sse4.2,pclmul")))
#define MOONPOOL_AVX2 __attribute__((target("avx2,vpclmulqdq,sse4.2,pclmul")))

MOONPOOL_AVX512 inline __m512i Broadcast512(FoldFactor factor) {
  const auto low = static_cast<int64_t>(factor.low);
  const auto high = static_cast<int64_t>(factor.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}
MOONPOOL_AVX512 inline __m512i Fold512(__m512i lanes, __m512i factor, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(lanes, factor, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(lanes, factor, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

MOONPOOL_AVX512 uint32_t ExtendFold512(uint32_t state, const uint8_t* data, size_t size) {
  constexpr size_t kStep = size_t{4} * 64;
  if (size < 2 * kStep) return ExtendInterleaved(state, data, size);
  __m512i acc[4];
  for (size_t i = 0; i < 4; ++i) acc[i] = _mm512_loadu_si512(data + 64 * i);
  acc[0] =
      _mm512_xor_si512(acc[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  const __m512i by_step = Broadcast512(FactorFor(8 * kStep));
  data += kStep;
  size -= kStep;
  for (; size >= kStep; size -= kStep, data += kStep) {
    for (size_t i = 0; i < 4; ++i) {
      acc[i] = Fold512(acc[i], by_step, _mm512_loadu_si512(data + 64 * i));
    }
  }
  const __m512i by_one = Broadcast512(FactorFor(uint64_t{8} * 64));
  __m512i last = acc[0];
  for (size_t i = 1; i < 4; ++i) last = Fold512(last, by_one, acc[i]);
  for (; size >= 64; size -= 64, data += 64) {
    last = Fold512(last, by_one, _mm512_loadu_si512(data));
  }
  std::array<uint8_t, 64> rest;
  _mm512_storeu_si512(rest.data(), last);
  return ExtendSerial(ExtendSerial(0, rest.data(), rest.size()), data, size);
}

MOONPOOL_AVX2 inline __m256i Broadcast256(FoldFactor factor) {
  const auto low = static_cast<int64_t>(factor.low);
  const auto high = static_cast<int64_t>(factor.high);
  return _mm256_set_epi64x(high, low, high, low);
}
MOONPOOL_AVX2 inline __m256i Load256(const uint8_t* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}
MOONPOOL_AVX2 inline __m256i Fold256(__m256i lanes, __m256i factor, __m256i next) {
  const __m256i low = _mm256_clmulepi64_epi128(lanes, factor, 0x00);
  const __m256i high = _mm256_clmulepi64_epi128(lanes, factor, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

MOONPOOL_AVX2 uint32_t ExtendFold256(uint32_t state, const uint8_t* data, size_t size) {
  constexpr size_t kStep = size_t{4} * 32;
  if (size < 2 * kStep) return ExtendInterleaved(state, data, size);
  __m256i acc[4];
  for (size_t i = 0; i < 4; ++i) acc[i] = Load256(data + 32 * i);
  acc[0] =
      _mm256_xor_si256(acc[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(state))));
  const __m256i by_step = Broadcast256(FactorFor(8 * kStep));
  data += kStep;
  size -= kStep;
  for (; size >= kStep; size -= kStep, data += kStep) {
    for (size_t i = 0; i < 4; ++i) acc[i] = Fold256(acc[i], by_step, Load256(data + 32 * i));
  }
  const __m256i by_one = Broadcast256(FactorFor(uint64_t{8} * 32));
  __m256i last = acc[0];
  for (size_t i = 1; i < 4; ++i) last = Fold256(last, by_one, acc[i]);
  for (; size >= 32; size -= 32, data += 32) last = Fold256(last, by_one, Load256(data));
  std::array<uint8_t, 32> rest;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest.data()), last);
  return ExtendSerial(ExtendSerial(0, rest.data(), rest.size()), data, size);
}

}  // namespace

Crc32cKernel Crc32cKernelAt(int n) {
  __builtin_cpu_init();
  const bool serial = __builtin_cpu_supports("sse4.2");
  const bool streams = serial && __builtin_cpu_supports("pclmul");
  const bool wide = streams && __builtin_cpu_supports("vpclmulqdq");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
  if (wide && avx512 && n-- == 0) return {ExtendFold512, "vpclmulqdq"};
  if (wide && __builtin_cpu_supports("avx2") && n-- == 0) return {ExtendFold256, "vpclmulqdq-256"};
  if (streams && n-- == 0) return {ExtendInterleaved, "sse4.2"};
  if (serial && n-- == 0) return {ExtendSerial, "sse4.2-serial"};
  return {};
}

}  // namespace moonpool::port

#else

namespace moonpool::port {

Crc32cKernel Crc32cKernelAt(int) { return {}; }

}  // namespace moonpool::port

#endif

namespace moonpool::port {

Crc32cKernel BestCrc32cKernel() { return Crc32cKernelAt(0); }

}  // namespace moonpool::port
