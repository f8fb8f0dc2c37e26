// moonpool_sim --seed N | --seeds COUNT [--first K] [--seconds S] [--steps N]: simulated runs; see run.h. Ends at the
// first seed that breaks an invariant, prints it and exits 1.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "run.h"

int main(int argc, char** argv) {
  uint64_t first = 1;
  uint64_t count = 100;
  double seconds = 1e9;
  int steps = 150;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 >= argc) {
      std::fprintf(
          stderr,
          "usage: moonpool_sim --seed N | --seeds COUNT [--first K] [--seconds S] [--steps N]\n");
      return 2;
    }
    const char* value = argv[i + 1];
    if (std::strcmp(argv[i], "--seed") == 0) {
      first = std::strtoull(value, nullptr, 10);
      count = 1;
    } else if (std::strcmp(argv[i], "--seeds") == 0) {
      count = std::strtoull(value, nullptr, 10);
    } else if (std::strcmp(argv[i], "--first") == 0) {
      first = std::strtoull(value, nullptr, 10);
    } else if (std::strcmp(argv[i], "--seconds") == 0) {
      seconds = std::atof(value);
    } else if (std::strcmp(argv[i], "--steps") == 0) {
      steps = std::atoi(value);
    } else {
      std::fprintf(stderr, "moonpool_sim: unknown option %s\n", argv[i]);
      return 2;
    }
  }
  moonpool::sim::RunResult sum;
  uint64_t ran = 0;
  const auto start = moonpool::BootClock::now();
  auto elapsed = [&] {
    return std::chrono::duration<double>(moonpool::BootClock::now() - start).count();
  };
  for (uint64_t seed = first; seed < first + count && elapsed() < seconds; ++seed, ++ran) {
    const auto result = moonpool::sim::Run(seed, steps);
    sum.batches_ok += result.batches_ok;
    sum.batches_failed += result.batches_failed;
    sum.notifications += result.notifications;
    sum.faults += result.faults;
    if (!result.error.empty()) {
      std::printf("seed %llu: %s\nreplay: script/sim --seed %llu --steps %d\n",
                  static_cast<unsigned long long>(seed), result.error.c_str(),
                  static_cast<unsigned long long>(seed), steps);
      return 1;
    }
  }
  std::printf(
      "%llu seeds from %llu: %llu batches ok, %llu failed, %llu notifications, %llu faults, %.1f "
      "s\n",
      static_cast<unsigned long long>(ran), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(sum.batches_ok),
      static_cast<unsigned long long>(sum.batches_failed),
      static_cast<unsigned long long>(sum.notifications),
      static_cast<unsigned long long>(sum.faults), elapsed());
  return 0;
}
