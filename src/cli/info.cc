#include <cstdio>
#include <string>

#include "base/crc32c.h"
#include "base/fence.h"
#include "base/log.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "engine/engine.h"
#include "transport/builtin.h"

namespace moonpool::cli {
namespace {

struct OptionRow {
  const char* name;
  std::string value;  // the default
  const char* unit;
  const char* variable;
  const char* help;
};

std::string Seconds(Duration duration) {
  return Str(std::chrono::duration<double>(duration).count());
}

std::vector<OptionRow> OptionRows() {
  const engine::Options options;
  const auto spin = std::chrono::duration_cast<std::chrono::microseconds>(options.spin_max);
  return {
      {"listen", "127.0.0.1:0", "host:port", "MOONPOOL_LISTEN", "where peers reach this process"},
      {"advertise_host", "", "host", "MOONPOOL_ADVERTISE_HOST", "the host that peers are told"},
      {"name", "", "", "MOONPOOL_NAME", "the segment's name in the registry"},
      {"registry", "", "URL", "MOONPOOL_REGISTRY", "http://host:port of the registry"},
      {"transports", "", "names", "MOONPOOL_TRANSPORTS", "binding list; empty: all that work"},
      {"workers", Str(options.workers), "threads", "MOONPOOL_WORKERS", "posting contexts, 1 .. 16"},
      {"serving_threads", Str(options.serving_threads), "threads", "MOONPOOL_SERVING_THREADS",
       "per transport, for peers' requests, 1 .. 64"},
      {"checksum", options.checksum ? "1" : "0", "0 or 1", "MOONPOOL_CHECKSUM",
       "CRC32C on every slice"},
      {"spin_us", Str(spin.count()), "microseconds", "MOONPOOL_SPIN_US", "longest busy wait"},
      {"timeout", Seconds(options.timeout), "seconds", "MOONPOOL_TIMEOUT",
       "of a batch or call that names none"},
      {"log_level", "warning", "", "MOONPOOL_LOG_LEVEL", "debug, info, warning, error or off"},
      {"retry_window", Seconds(options.retry_window), "seconds", "",
       "how long an unreachable peer is tried again"},
      {"lease", Seconds(options.lease), "seconds", "", "of the registry's entry"},
      {"batches_max", Str(options.batches_max), "batches", "", "live at once"},
      {"notifications_max", Str(options.notifications_max), "notifications", "",
       "received and not yet taken"},
  };
}

int PrintOptions(bool as_json) {
  const auto rows = OptionRows();
  if (as_json) {
    Json json;
    json.Open('[');
    for (const OptionRow& row : rows)
      json.Open('{')
          .Key("name")
          .Text(row.name)
          .Key("default")
          .Text(row.value)
          .Key("unit")
          .Text(row.unit)
          .Key("variable")
          .TextOrNull(row.variable)
          .Key("help")
          .Text(row.help)
          .Close('}');
    std::puts(json.Close(']').str().c_str());
    return kOk;
  }
  std::printf("%-18s %-12s %-14s %-25s %s\n", "option", "default", "unit", "variable", "");
  for (const OptionRow& row : rows)
    std::printf("%-18s %-12s %-14s %-25s %s\n", row.name,
                row.value.empty() ? "-" : row.value.c_str(), row.unit,
                *row.variable == '\0' ? "-" : row.variable, row.help);
  return kOk;
}

void PrintJson(const engine::Info& info) {
  Json json;
  json.Open('{').Key("version").Text(MOONPOOL_VERSION);
  json.Key("fence_exact").Bool(info.fence_exact).Key("crc32c").Text(Crc32cImplementation());
  json.Key("transports").Open('[');
  for (const engine::TransportInfo& transport : info.transports)
    json.Open('{')
        .Key("name")
        .Text(transport.name)
        .Key("usable")
        .Bool(transport.usable)
        .Key("reason")
        .TextOrNull(transport.reason)
        .Close('}');
  std::puts(json.Close(']').Close('}').str().c_str());
}

void PrintText(const engine::Info& info) {
  std::printf("moonpool    %s\n", MOONPOOL_VERSION);
  std::printf("fence       %s\n", info.fence_exact
                                      ? "exact (restartable sequences)"
                                      : "checked before each step (no restartable sequences here)");
  std::printf("crc32c      %s\n", Crc32cImplementation());
  for (const engine::TransportInfo& transport : info.transports)
    std::printf("transport   %-8s %s%s%s\n", transport.name.c_str(),
                transport.usable ? "usable" : "not usable", transport.reason.empty() ? "" : ": ",
                transport.reason.c_str());
}

}  // namespace

int RunInfo(const InfoArguments& arguments) {
  if (arguments.options) return PrintOptions(arguments.json);
  SystemClock clock;
  Logger log(LogLevel::kError);
  engine::Options options;
  options.listen = "127.0.0.1:0";
  options.transports = arguments.transports;
  const auto made = engine::Engine::Create(
      options, engine::World{clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}});
  if (!made.ok()) {
    std::fprintf(stderr, "moonpool info: %s\n", made.status().ToString().c_str());
    return kFailed;
  }
  const engine::Info info = (*made)->Describe();
  if (arguments.json)
    PrintJson(info);
  else
    PrintText(info);
  return kOk;
}

}  // namespace moonpool::cli
