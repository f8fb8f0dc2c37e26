#include <benchmark/benchmark.h>

#include "base/random.h"
#include "memory/region_table.h"

namespace moonpool::memory {
namespace {

// What a transport pays per step on a peer's behalf.
void BM_EnterAndLeave(benchmark::State& state) {
  SystemClock clock;
  RegionTable table(clock);
  const RegionKey key = table.Register({.address = 4096, .size = 1 << 20})->key;
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Enter(key, 8192, 65536, Rights::kRead));
    table.Leave(key);
  }
}
BENCHMARK(BM_EnterAndLeave);

void BM_Find(benchmark::State& state) {
  SystemClock clock;
  RegionTable table(clock);
  const auto count = static_cast<uint64_t>(state.range(0));
  for (uint64_t i = 1; i <= count; ++i) {
    if (!table.Register({.address = i * 8192, .size = 4096}).ok()) return;
  }
  Random random(1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Find((1 + random.Below(count)) * 8192 + 100, 64));
  }
}
BENCHMARK(BM_Find)->Arg(1)->Arg(1000)->Arg(100000);

void BM_RegisterAndDeregister(benchmark::State& state) {
  SystemClock clock;
  RegionTable table(clock);
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Register({.address = 4096, .size = 4096}));
    benchmark::DoNotOptimize(table.Deregister(4096, kNever));
  }
}
BENCHMARK(BM_RegisterAndDeregister);

}  // namespace
}  // namespace moonpool::memory
