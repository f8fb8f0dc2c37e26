#include <benchmark/benchmark.h>

#include <vector>

#include "base/random.h"
#include "memory/offset_allocator.h"

namespace moonpool::memory {
namespace {

// Frees a random extent and allocates another size, with range(0) extents alive. One item is one
// operation.
void BM_Churn(benchmark::State& state) {
  const auto live_count = static_cast<size_t>(state.range(0));
  Random random(1);
  auto space = OffsetAllocator::Create({.capacity = live_count * 16384 * 5 / 4}).value();
  std::vector<ExtentHandle> live;
  for (size_t i = 0; i < live_count; ++i) {
    live.push_back(space->Allocate(1 + random.Below(32768))->handle);
  }
  // The choices are made beforehand, so that the generator is not measured.
  struct Choice {
    uint32_t victim;
    uint32_t size;
  };
  std::vector<Choice> choices(1 << 16);
  for (Choice& choice : choices) {
    choice = {static_cast<uint32_t>(random.Below(live_count)),
              static_cast<uint32_t>(1 + random.Below(32768))};
  }
  size_t next = 0;
  size_t operations = 0;
  for (auto _ : state) {
    const Choice& choice = choices[next++ & (choices.size() - 1)];
    benchmark::DoNotOptimize(space->Free(live[choice.victim]));
    auto extent = space->Allocate(choice.size);
    if (!extent.ok()) extent = space->Allocate(1);
    live[choice.victim] = extent->handle;
    operations += 2;
  }
  state.SetItemsProcessed(static_cast<int64_t>(operations));
}
BENCHMARK(BM_Churn)->Arg(100)->Arg(10000)->Arg(100000)->Arg(1000000);

// Same-sized extents, first all allocated, then all freed: a cache of equal pages.
void BM_FillAndDrain(benchmark::State& state) {
  const auto count = static_cast<size_t>(state.range(0));
  auto space = OffsetAllocator::Create({.capacity = count * 4096}).value();
  std::vector<ExtentHandle> live(count);
  for (auto _ : state) {
    for (ExtentHandle& handle : live) handle = space->Allocate(4096)->handle;
    for (const ExtentHandle& handle : live) space->Free(handle);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * 2 * count));
}
BENCHMARK(BM_FillAndDrain)->Arg(1000)->Arg(100000);

}  // namespace
}  // namespace moonpool::memory
