#include "memory.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "owner.h"
#include "transport/builtin.h"

namespace moonpool::bench {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kBatch = 64;  // transfers of 64 B in one batch

uint64_t ResidentBytes() {
  unsigned long long total = 0;
  unsigned long long resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

Result<std::unique_ptr<engine::Engine>> MakeEngine(Clock& clock, Logger& log) {
  engine::Options options;
  options.listen = "127.0.0.1:0";
  options.transports = {"tcp"};
  return engine::Engine::Create(
      options, {clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}, true});
}

// Registers every other block of memory that is never touched.
Status Regions(engine::Engine& engine, MemoryCost* cost) {
  const auto memory = std::make_unique_for_overwrite<uint8_t[]>(2 * kBlock * cost->regions);
  const uint64_t before = ResidentBytes();
  const Time start = BootClock::now();
  for (uint64_t i = 0; i < cost->regions; ++i) {
    MOONPOOL_RETURN_IF_ERROR(
        engine.Register(memory.get() + 2 * kBlock * i, kBlock, Rights::kReadWrite).status());
  }
  cost->register_seconds = std::chrono::duration<double>(BootClock::now() - start).count();
  const uint64_t after = ResidentBytes();
  cost->region_bytes = static_cast<double>(after - before) / static_cast<double>(cost->regions);
  for (uint64_t i = 0; i < cost->regions; ++i) {
    MOONPOOL_RETURN_IF_ERROR(
        engine.Deregister(memory.get() + 2 * kBlock * i, std::chrono::seconds(10)));
  }
  return Status::Ok();
}

// The first half of the transfers fills every cache and pool; the second half must not grow.
Status Transfers(engine::Engine& engine, MemoryCost* cost) {
  MOONPOOL_ASSIGN_OR_RETURN(Owner owner, StartOwner({"tcp", true, true, 1 << 20}));
  MOONPOOL_ASSIGN_OR_RETURN(const RegionInfo region,
                            engine.Allocate(1 << 20, Rights::kReadWrite, false));
  MOONPOOL_ASSIGN_OR_RETURN(const auto segment,
                            engine.Open(owner.address, std::chrono::seconds(10)));
  std::vector<uint64_t> local;
  std::vector<uint64_t> remote;
  const std::vector<uint64_t> lengths(kBatch, 64);
  for (uint64_t i = 0; i < kBatch; ++i) {
    local.push_back(region.address + 128 * i);
    remote.push_back(owner.base + 128 * i);
  }
  const engine::Group group{segment, transport::Op::kWrite, local, remote, lengths};
  engine::BatchRequest request;
  request.groups = {&group, 1};
  request.wait_follows = true;
  uint64_t middle = 0;
  for (uint64_t done = 0; done < cost->transfers; done += kBatch) {
    if (middle == 0 && done >= cost->transfers / 2) middle = ResidentBytes();
    MOONPOOL_ASSIGN_OR_RETURN(const auto batch, engine.Submit(request));
    const Status status = engine.Wait(batch, std::chrono::seconds(30));
    MOONPOOL_RETURN_IF_ERROR(engine.Release(batch));
    MOONPOOL_RETURN_IF_ERROR(status);
  }
  cost->growth_bytes = static_cast<double>(ResidentBytes()) - static_cast<double>(middle);
  StopOwner(owner);
  return Status::Ok();
}

}  // namespace

Result<MemoryCost> MeasureMemory(uint64_t regions, uint64_t transfers) {
  MemoryCost cost;
  cost.regions = regions;
  cost.transfers = transfers;
  SystemClock clock;
  Logger log(LogLevel::kWarning);
  MOONPOOL_ASSIGN_OR_RETURN(auto engine, MakeEngine(clock, log));
  cost.rest_bytes = ResidentBytes();
  MOONPOOL_RETURN_IF_ERROR(Regions(*engine, &cost));
  MOONPOOL_RETURN_IF_ERROR(Transfers(*engine, &cost));
  engine->Close();
  return cost;
}

}  // namespace moonpool::bench
