#include <algorithm>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "engine/engine.h"
#include "registry/builtin.h"
#include "registry/registry.h"
#include "transport/builtin.h"

namespace moonpool::cli {
namespace {

struct Outcome {
  Status status;
  engine::SegmentInfo segment;
  std::string read;  // "64 bytes read from …", or why nothing was read
};

Duration Seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// Reads a few bytes of the first region that may be read: the data path works.
std::string TryRead(engine::Engine& engine, engine::SegmentHandle handle,
                    const engine::SegmentInfo& segment, Status* status) {
  const auto readable =
      std::find_if(segment.regions.begin(), segment.regions.end(),
                   [](const RegionInfo& region) { return Allows(region.rights, Rights::kRead); });
  if (readable == segment.regions.end()) return "nothing to read: the peer offers no such memory";
  const uint64_t size = std::min<uint64_t>(readable->size, 64);
  const auto memory = engine.Allocate(size, Rights::kNone, false);
  if (!memory.ok()) return memory.status().message();
  const engine::Group group{
      handle, transport::Op::kRead, {&memory->address, 1}, {&readable->address, 1}, {&size, 1}};
  engine::BatchRequest request;
  request.groups = {&group, 1};
  const auto batch = engine.Submit(request);
  *status = batch.ok() ? engine.Wait(*batch, Duration::max()) : batch.status();
  return status->ok() ? Str(size, " bytes read") : "reading failed";
}

Outcome Probe(const ProbeArguments& arguments, SystemClock& clock, Logger& log) {
  Outcome outcome;
  engine::World world{clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}};
  if (!arguments.registry.empty()) {
    const auto factories = registry::BuiltinFactories();
    auto registry = registry::Open(factories, {clock, log}, arguments.registry);
    if (!registry.ok()) return {registry.status(), {}, ""};
    world.registry = std::move(registry).value();
  }
  engine::Options options;
  options.listen = ":0";
  options.transports = arguments.transports;
  options.timeout = Seconds(arguments.timeout);
  const auto made = engine::Engine::Create(options, std::move(world));
  if (!made.ok()) return {made.status(), {}, ""};
  engine::Engine& engine = **made;
  const auto handle = engine.Open(arguments.peer, options.timeout);
  if (!handle.ok()) return {handle.status(), {}, ""};
  auto segment = engine.Segment(*handle, false, options.timeout);
  if (!segment.ok()) return {segment.status(), {}, ""};
  outcome.segment = std::move(segment).value();
  outcome.read = TryRead(engine, *handle, outcome.segment, &outcome.status);
  return outcome;
}

void PrintJson(const ProbeArguments& arguments, const Outcome& outcome) {
  const engine::SegmentInfo& segment = outcome.segment;
  Json json;
  json.Open('{')
      .Key("peer")
      .Text(arguments.peer)
      .Key("ok")
      .Bool(outcome.status.ok())
      .Key("code")
      .Text(CodeName(outcome.status.code()))
      .Key("error")
      .TextOrNull(outcome.status.message())
      .Key("address")
      .TextOrNull(segment.address)
      .Key("transport")
      .TextOrNull(segment.transport)
      .Key("reason")
      .TextOrNull(segment.reason)
      .Key("regions")
      .Number(static_cast<uint64_t>(segment.regions.size()))
      .Key("data")
      .TextOrNull(outcome.read)
      .Close('}');
  std::puts(json.str().c_str());
}

}  // namespace

int RunProbe(const ProbeArguments& arguments) {
  SystemClock clock;
  Logger log(LogLevel::kOff);
  const Time started = clock.Now();
  const Outcome outcome = Probe(arguments, clock, log);
  if (arguments.json) {
    PrintJson(arguments, outcome);
    return outcome.status.ok() ? kOk : kFailed;
  }
  const engine::SegmentInfo& segment = outcome.segment;
  if (!segment.address.empty()) {
    uint64_t bytes = 0;
    for (const RegionInfo& region : segment.regions) bytes += region.size;
    std::printf("resolve    ok: %s\n", segment.address.c_str());
    std::printf("connect    ok: node %016lx, incarnation %016lx\n", segment.id.node,
                segment.id.incarnation);
    std::printf("transport  %s (%s)\n", segment.transport.c_str(), segment.reason.c_str());
    std::printf("regions    %zu, %lu bytes\n", segment.regions.size(), bytes);
    std::printf("data       %s\n", outcome.read.c_str());
  }
  if (!outcome.status.ok()) {
    std::fprintf(stderr, "moonpool probe: %s\n", outcome.status.ToString().c_str());
    return kFailed;
  }
  std::printf("took       %.1f ms\n",
              std::chrono::duration<double, std::milli>(clock.Now() - started).count());
  return kOk;
}

}  // namespace moonpool::cli
