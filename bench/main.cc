// moonpool_bench [--match TEXT] [--rounds N] [--seconds S] [--json]: rows of the engine, each with its floor measured in
// turns with it. One line per row; with --json one JSON object per line. script/bench puts it all together.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "owner.h"
#include "rows.h"

namespace moonpool::bench {
namespace {

const char* FloorName(FloorKind kind) {
  switch (kind) {
    case FloorKind::kStreams:
      return "2 raw sockets";
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
      json ? "{\"row\": \"%s\", \"gbps\": %.4f, \"descriptors_per_second\": %.0f, \"batch_us_median\": %.2f, \"batch_us_p99\": "
             "%.2f, \"floor\": \"%s\", \"floor_value\": %.4f, \"ratio\": %.4f}\n"
           : "%-34s %8.3f GB/s %11.0f desc/s  %10.1f us (p99 %10.1f)  %-16s %9.3f  ratio %.3f\n";
  const bool ping = m.row.floor == FloorKind::kPingPong;
  std::printf(format, m.row.name.c_str(), m.rate / 1e9, m.descriptors, m.seconds_median * 1e6, m.seconds_p99 * 1e6,
              FloorName(m.row.floor), ping ? m.floor * 1e6 : m.floor / 1e9, m.ratio);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  std::string match;
  int rounds = 5;
  double seconds = 0.3;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--match") == 0 && more) {
      match = argv[++i];
    } else if (std::strcmp(argv[i], "--rounds") == 0 && more) {
      rounds = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--seconds") == 0 && more) {
      seconds = std::atof(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: moonpool_bench [--match TEXT] [--rounds N] [--seconds S] [--json]\n");
      return 2;
    }
  }
  for (const Row& row : AllRows()) {
    if (row.name.find(match) == std::string::npos) continue;
    const auto measured = Measure(row, rounds, seconds);
    if (!measured.ok()) {
      std::fprintf(stderr, "%s: %s\n", row.name.c_str(), measured.status().ToString().c_str());
      return 1;
    }
    Print(*measured, json);
  }
  return 0;
}

}  // namespace
}  // namespace moonpool::bench

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "owner") == 0) return moonpool::bench::OwnerMain(argc, argv);
  return moonpool::bench::Main(argc, argv);
}
