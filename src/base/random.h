#pragma once

// Random numbers. Random: a small seeded generator (xoshiro256**, Blackman and Vigna 2018, seeded
// by SplitMix64) whose sequence is the same everywhere, for simulation and for spreading load.
// SecureBytes: unguessable bytes from the kernel, for keys, tokens and ids. Threads: Random is
// thread-compatible; SecureBytes is thread-safe.

#include <array>
#include <cstdint>
#include <span>

namespace moonpool {

class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t Next();
  // Uniform in [0, bound). Requires: bound > 0.
  uint64_t Below(uint64_t bound);
  // True with probability `numerator` / `denominator`.
  bool Chance(uint64_t numerator, uint64_t denominator) { return Below(denominator) < numerator; }

 private:
  std::array<uint64_t, 4> state_;
};

void SecureBytes(std::span<uint8_t> out);
uint64_t SecureUint64();

}  // namespace moonpool
