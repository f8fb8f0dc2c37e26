#include <benchmark/benchmark.h>
#include <sys/syscall.h>

#include <cstring>
#include <vector>

#include "base/fence.h"

namespace moonpool {
namespace {

constexpr Time kLater = kNever - std::chrono::hours(1);

// A copy of range(0) bytes within a working set of range(1) bytes; memcpy is the floor.
template <typename Copy>
void Run(benchmark::State& state, const Copy& copy) {
  const auto size = static_cast<size_t>(state.range(0));
  const auto set = static_cast<size_t>(state.range(1));
  const std::vector<uint8_t> from(set, 1);
  std::vector<uint8_t> to(set, 2);
  size_t at = 0;
  for (auto _ : state) {
    copy(to.data() + at, from.data() + at, size);
    benchmark::ClobberMemory();
    at = at + 2 * size <= set ? at + size : 0;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * size));
}
void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{256, 4096, 16384, 65536, 1 << 20}, {1 << 20, 256 << 20}});
}

void BM_Memcpy(benchmark::State& state) { Run(state, std::memcpy); }
BENCHMARK(BM_Memcpy)->Apply(Sizes);

void BM_FencedCopy(benchmark::State& state) {
  Run(state, [](void* to, const void* from, size_t size) { FencedCopy(to, from, size, kLater); });
}
BENCHMARK(BM_FencedCopy)->Apply(Sizes);

void BM_Syscall(benchmark::State& state) {
  const Time deadline = state.range(0) != 0 ? kLater : kNever;
  for (auto _ : state) benchmark::DoNotOptimize(FencedSyscall(deadline, SYS_getppid));
}
BENCHMARK(BM_Syscall)->ArgName("fenced")->Arg(0)->Arg(1);

}  // namespace
}  // namespace moonpool
