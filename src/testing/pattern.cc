#include "testing/pattern.h"

#include <algorithm>
#include <cstring>
#include <iomanip>

#include "base/str.h"

namespace moonpool::testing {
namespace {

// Eight bytes of the pattern: the finaliser of SplitMix64 over seed and word number.
uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Calls visit(offset, word, skip, count) for the runs of bytes that lie in one word, in order, until it
// returns false; whole(offset, word) for whole words.
template <typename Whole, typename Visit>
void ForWords(uint64_t start, size_t size, uint64_t seed, Whole whole, Visit visit) {
  size_t done = 0;
  while (done < size) {
    const uint64_t at = start + done;
    const size_t skip = at % 8;
    if (skip == 0 && size - done >= 8) {
      if (!whole(done, Word(seed, at / 8))) return;
      done += 8;
      continue;
    }
    const size_t count = std::min<size_t>(8 - skip, size - done);
    if (!visit(done, Word(seed, at / 8), skip, count)) return;
    done += count;
  }
}

}  // namespace

uint8_t PatternByte(uint64_t seed, uint64_t offset) {
  return static_cast<uint8_t>(Word(seed, offset / 8) >> (8 * (offset % 8)));
}

void FillPattern(void* to, size_t size, uint64_t seed, uint64_t start) {
  auto* out = static_cast<char*>(to);
  const auto whole = [out](size_t offset, uint64_t word) {
    std::memcpy(out + offset, &word, sizeof(word));
    return true;
  };
  ForWords(start, size, seed, whole,
           [out](size_t offset, uint64_t word, size_t skip, size_t count) {
             std::memcpy(out + offset, reinterpret_cast<const char*>(&word) + skip, count);
             return true;
           });
}

size_t PatternPrefix(const void* bytes, size_t size, uint64_t seed, uint64_t start) {
  const auto* in = static_cast<const char*>(bytes);
  size_t good = 0;
  const auto some = [&](size_t offset, uint64_t word, size_t skip, size_t count) {
    const char* want = reinterpret_cast<const char*>(&word) + skip;
    const auto* wrong = std::mismatch(want, want + count, in + offset).first;
    good = offset + static_cast<size_t>(wrong - want);
    return wrong == want + count;
  };
  const auto whole = [&](size_t offset, uint64_t word) {
    uint64_t got = 0;
    std::memcpy(&got, in + offset, sizeof(got));
    if (got != word) return some(offset, word, 0, 8);
    good = offset + 8;
    return true;
  };
  ForWords(start, size, seed, whole, some);
  return good;
}

std::string PatternErrors(const void* bytes, size_t size, uint64_t seed, uint64_t start) {
  const size_t first = PatternPrefix(bytes, size, seed, start);
  if (first == size) return {};
  const auto* in = static_cast<const uint8_t*>(bytes);
  size_t wrong = 0;
  size_t last = first;
  for (size_t i = first; i < size; ++i) {
    if (in[i] == PatternByte(seed, start + i)) continue;
    ++wrong;
    last = i;
  }
  return Str("byte ", first, " of ", size, " of pattern ", seed, ": expected 0x", std::hex,
             std::setw(2), std::setfill('0'), static_cast<int>(PatternByte(seed, start + first)),
             ", got 0x", std::setw(2), static_cast<int>(in[first]), std::dec, " (", wrong,
             " wrong, the last at ", last, ")");
}

}  // namespace moonpool::testing
