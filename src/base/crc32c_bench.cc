#include <benchmark/benchmark.h>

#include <vector>

#include "base/crc32c.h"
#include "base/port/crc32c_port.h"

namespace moonpool {
namespace {

void Run(benchmark::State& state, uint32_t (*extend)(uint32_t, const uint8_t*, size_t)) {
  const std::vector<uint8_t> bytes(static_cast<size_t>(state.range(0)), 0x5a);
  for (auto _ : state) benchmark::DoNotOptimize(extend(0, bytes.data(), bytes.size()));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
}

void BM_Kernel(benchmark::State& state) {
  const port::Crc32cKernel kernel = port::Crc32cKernelAt(static_cast<int>(state.range(1)));
  if (kernel.extend == nullptr) {
    state.SkipWithError("this processor has no such kernel");
    return;
  }
  state.SetLabel(kernel.name);
  Run(state, kernel.extend);
}
BENCHMARK(BM_Kernel)->ArgsProduct({{64, 512, 4096, 65536, 1 << 20}, {0, 1, 2, 3}});

void BM_Table(benchmark::State& state) {
  Run(state, [](uint32_t crc, const uint8_t* data, size_t size) {
    return Crc32cPortable(crc, data, size);
  });
}
BENCHMARK(BM_Table)->Arg(4096)->Arg(65536);

}  // namespace
}  // namespace moonpool
