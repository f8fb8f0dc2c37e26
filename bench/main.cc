// moonpool_bench: the C++ half of script/bench, which puts it all together.
//
//   moonpool_bench [--match TEXT] [--rounds N] [--seconds S] [--json] [--list]
//       rows of the engine, each with its floor measured in turns with it; with --json one JSON
//       object per line. A row that fails says so, and the others go on.
//   moonpool_bench floors
//       answers lines "KIND BLOCK COUNT SECONDS" (streams, alike, memcpy or process_read) with
//       {"gbps": X}, until its input ends: floors for measurements made elsewhere
//   moonpool_bench memory REGIONS TRANSFERS
//       what an engine costs in memory, as one JSON object

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "memory.h"
#include "owner.h"
#include "rows.h"

namespace moonpool::bench {
namespace {

const char* FloorName(FloorKind kind) {
  switch (kind) {
    case FloorKind::kStreams:
      return "2 raw sockets";
    case FloorKind::kStreamsAlike:
      return "2 raw sockets, tuned alike";
    case FloorKind::kPingPong:
      return "raw ping-pong";
    case FloorKind::kMemcpy:
      return "memcpy";
    default:
      return "process_vm_readv";
  }
}

void Print(const Measured& m, bool json) {
  const char* format =
      json ? "{\"row\": \"%s\", \"gbps\": %.4f, \"descriptors_per_second\": %.0f, "
             "\"batch_us_median\": %.2f, \"batch_us_p99\": %.2f, \"floor\": \"%s\", "
             "\"floor_value\": %.4f, \"ratio\": %.4f}\n"
           : "%-34s %8.3f GB/s %11.0f desc/s  %10.1f us (p99 %10.1f)  %-16s %9.3f  ratio %.3f\n";
  const bool ping = m.row.floor == FloorKind::kPingPong;
  std::printf(format, m.row.name.c_str(), m.rate / 1e9, m.descriptors, m.seconds_median * 1e6,
              m.seconds_p99 * 1e6, FloorName(m.row.floor), ping ? m.floor * 1e6 : m.floor / 1e9,
              m.ratio);
  std::fflush(stdout);
}

struct Flags {
  std::string match;
  int rounds = 5;
  double seconds = 0.3;
  bool json = false;
  bool list = false;
};

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      flags->json = true;
    } else if (std::strcmp(argv[i], "--list") == 0) {
      flags->list = true;
    } else if (std::strcmp(argv[i], "--match") == 0 && more) {
      flags->match = argv[++i];
    } else if (std::strcmp(argv[i], "--rounds") == 0 && more) {
      flags->rounds = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--seconds") == 0 && more) {
      flags->seconds = std::atof(argv[++i]);
    } else {
      return false;
    }
  }
  return flags->rounds >= 1 && flags->seconds > 0;
}

int RowsMain(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, &flags)) {
    std::fprintf(stderr,
                 "usage: moonpool_bench [--match TEXT] [--rounds N] [--seconds S] [--json] "
                 "[--list] | floors | memory REGIONS TRANSFERS\n");
    return 2;
  }
  int failed = 0;
  for (const Row& row : AllRows()) {
    if (row.name.find(flags.match) == std::string::npos) continue;
    if (flags.list) {
      std::printf("%s\n", row.name.c_str());
      continue;
    }
    const auto measured = Measure(row, flags.rounds, flags.seconds);
    if (measured.ok()) {
      Print(*measured, flags.json);
      continue;
    }
    failed = 1;
    std::fprintf(stderr, "%s: %s\n", row.name.c_str(), measured.status().ToString().c_str());
    if (flags.json) std::printf("{\"row\": \"%s\", \"error\": true}\n", row.name.c_str());
    std::fflush(stdout);
  }
  return failed;
}

int FloorsMain() {
  const auto owner = StartOwner({"tcp", true, true, 64 << 20});
  if (!owner.ok()) {
    std::fprintf(stderr, "%s\n", owner.status().ToString().c_str());
    return 1;
  }
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    char kind[32];
    unsigned long long block = 0;
    unsigned long long count = 0;
    double seconds = 0;
    Row row;
    if (std::sscanf(line, "%31s %llu %llu %lf", kind, &block, &count, &seconds) != 4 ||
        block == 0 || count == 0) {
      std::fprintf(stderr, "floors: not KIND BLOCK COUNT SECONDS: %s", line);
      return 2;
    }
    row.block = block;
    row.count = count;
    if (std::strcmp(kind, "alike") == 0) row.floor = FloorKind::kStreamsAlike;
    if (std::strcmp(kind, "memcpy") == 0) row.floor = FloorKind::kMemcpy;
    if (std::strcmp(kind, "process_read") == 0) row.floor = FloorKind::kProcessRead;
    std::printf("{\"gbps\": %.4f}\n", MeasureFloor(row, *owner, seconds) / 1e9);
    std::fflush(stdout);
  }
  return 0;
}

int MemoryMain(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto cost =
      MeasureMemory(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  if (!cost.ok()) {
    std::fprintf(stderr, "memory: %s\n", cost.status().ToString().c_str());
    return 1;
  }
  std::printf(
      "{\"rest_bytes\": %llu, \"regions\": %llu, \"region_bytes\": %.1f, "
      "\"register_seconds\": %.4f, \"transfers\": %llu, \"growth_bytes\": %.0f}\n",
      static_cast<unsigned long long>(cost->rest_bytes),
      static_cast<unsigned long long>(cost->regions), cost->region_bytes, cost->register_seconds,
      static_cast<unsigned long long>(cost->transfers), cost->growth_bytes);
  return 0;
}

}  // namespace
}  // namespace moonpool::bench

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (std::strcmp(mode, "owner") == 0) return moonpool::bench::OwnerMain(argc, argv);
  if (std::strcmp(mode, "floors") == 0) return moonpool::bench::FloorsMain();
  if (std::strcmp(mode, "memory") == 0) return moonpool::bench::MemoryMain(argc, argv);
  return moonpool::bench::RowsMain(argc, argv);
}
