#pragma once

// Memory filled so that every wrong byte is noticed and located: the byte at each offset is a
// function of a seed and the offset, and differs between seeds and between neighbours.
//
//   FillPattern(buffer, size, 7);
//   EXPECT_EQ(PatternErrors(buffer, size, 7), "");
//
// Threads: pure functions.

#include <cstddef>
#include <cstdint>
#include <string>

namespace moonpool::testing {

// `start` is the offset within the pattern of the first byte.
void FillPattern(void* to, size_t size, uint64_t seed, uint64_t start = 0);
uint8_t PatternByte(uint64_t seed, uint64_t offset);

// Empty when all bytes are right; else the first wrong one and how many there are:
// "byte 17 of 4096 of pattern 7: expected 0x5c, got 0x00 (23 wrong, the last at 39)".
std::string PatternErrors(const void* bytes, size_t size, uint64_t seed, uint64_t start = 0);

// How many leading bytes are of the pattern.
size_t PatternPrefix(const void* bytes, size_t size, uint64_t seed, uint64_t start = 0);

}  // namespace moonpool::testing
