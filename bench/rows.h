#pragma once

// One row of the benchmark: a shape of batch over one transport, measured in turns with its floor. Threads: one caller.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "owner.h"

namespace moonpool::bench {

enum class FloorKind { kStreams, kStreamsAlike, kPingPong, kMemcpy, kProcessRead };

struct Row {
  std::string name;
  std::string transport;
  bool checksum = true;
  bool engine_memory = true;
  bool write = true;
  uint64_t block = 0;  // bytes per descriptor
  uint64_t count = 1;  // descriptors per batch, every other block when more than 1
  FloorKind floor = FloorKind::kStreams;
};

struct Measured {
  Row row;
  double rate = 0;            // bytes per second, median of the rounds
  double descriptors = 0;     // per second
  double seconds_median = 0;  // of one batch
  double seconds_p99 = 0;
  double floor = 0;  // bytes per second, or seconds of a round trip
  double ratio = 0;  // of the floor: rate / floor, or time / floor time
};

std::vector<Row> AllRows();
// The floor of `row` alone, as in Measured.
double MeasureFloor(const Row& row, const Owner& owner, double seconds);
Result<Measured> Measure(const Row& row, int rounds, double seconds);

}  // namespace moonpool::bench
