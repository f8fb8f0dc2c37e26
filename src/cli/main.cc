// The program `moonpool`: what its command line means. The commands are in commands.h.

#include <cstdio>

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace moonpool::cli {
namespace {

const char* const kTransportsHelp = "only these transports (binding); default: all that work";

int Parse(int argc, char** argv) {
  CLI::App app("Moonpool: moves KV cache between processes and hosts.", "moonpool");
  app.set_version_flag("--version", MOONPOOL_VERSION);
  app.require_subcommand(1);
  app.footer("Exit status: 0 ok, 1 failed, 2 wrong usage.");
  int status = kOk;

  InfoArguments info;
  CLI::App* command = app.add_subcommand("info", "What this build and machine can do, and why not");
  command->add_flag("--options", info.options, "print the table of engine options");
  command->add_flag("--json", info.json, "print one JSON object");
  command->add_option("--transports", info.transports, kTransportsHelp)
      ->delimiter(',')
      ->envname("MOONPOOL_TRANSPORTS");
  command->callback([&] { status = RunInfo(info); });

  TopoArguments topo;
  command = app.add_subcommand("topo", "NUMA nodes, NICs, accelerators and which are near");
  command->add_flag("--json", topo.json, "print one JSON object");
  command->add_flag("--mooncake", topo.mooncake, "print the affinity matrix in Mooncake's shape");
  command->callback([&] { status = RunTopo(topo); });

  ProbeArguments probe;
  command = app.add_subcommand("probe", "Finds a peer and shows how far one gets, and by what");
  command->add_option("peer", probe.peer, "host:port, or a segment's name with --registry")
      ->required();
  command->add_option("--registry", probe.registry, "http://host:port of the registry")
      ->envname("MOONPOOL_REGISTRY");
  command->add_option("--transports", probe.transports, kTransportsHelp)
      ->delimiter(',')
      ->envname("MOONPOOL_TRANSPORTS");
  command->add_option("--timeout", probe.timeout, "seconds for everything")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", probe.json, "print one JSON object");
  command->callback([&] { status = RunProbe(probe); });

  RegistryArguments registry;
  registry.listen = "127.0.0.1:8080";
  command =
      app.add_subcommand("registry", "Serves segment names over HTTP until SIGINT or SIGTERM");
  command->add_option("--listen", registry.listen, "host:port; port 0: the kernel picks one")
      ->capture_default_str();
  command->add_flag("--json", registry.json, "print the address as one JSON object");
  command->callback([&] { status = RunRegistry(registry); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return status;
}

}  // namespace
}  // namespace moonpool::cli

int main(int argc, char** argv) {
  try {
    return moonpool::cli::Parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moonpool: %s\n", error.what());
    return moonpool::cli::kFailed;
  }
}
