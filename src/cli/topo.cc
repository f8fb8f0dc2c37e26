#include <cstdio>
#include <string>

#include "base/str.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "topology/probe.h"
#include "topology/topology.h"

namespace moonpool::cli {
namespace {

// The matrix that transfers would use: RDMA NICs where there are some, network interfaces else.
topology::Matrix MatrixOf(const topology::Topology& found) {
  for (const topology::Nic& nic : found.nics)
    if (nic.kind == topology::NicKind::kRdma)
      return topology::AffinityMatrix(found, topology::NicKind::kRdma);
  return topology::AffinityMatrix(found, topology::NicKind::kNetwork);
}

const char* KindText(topology::NicKind kind) {
  return kind == topology::NicKind::kRdma ? "rdma" : "network";
}

void PutNode(Json& json, const topology::NumaNode& node) {
  json.Open('{').Key("id").Number(static_cast<int64_t>(node.id));
  json.Key("memory_bytes").Number(node.memory_bytes).Key("cpus").Open('[');
  for (const int cpu : node.cpus) json.Number(static_cast<int64_t>(cpu));
  json.Close(']').Key("distances").Open('{');
  for (const auto& [to, distance] : node.distances)
    json.Key(std::to_string(to)).Number(static_cast<int64_t>(distance));
  json.Close('}').Close('}');
}

void PutNic(Json& json, const topology::Nic& nic) {
  json.Open('{')
      .Key("name")
      .Text(nic.name)
      .Key("kind")
      .Text(KindText(nic.kind))
      .Key("driver")
      .TextOrNull(nic.driver)
      .Key("speed_mbps")
      .Number(nic.speed_mbps)
      .Key("numa_node")
      .Number(static_cast<int64_t>(nic.numa_node))
      .Key("pci_path")
      .TextOrNull(nic.pci_path)
      .Key("virtual")
      .Bool(nic.is_virtual)
      .Key("up")
      .Bool(nic.up)
      .Close('}');
}

void PrintJson(const topology::Topology& found) {
  Json json;
  json.Open('{').Key("nodes").Open('[');
  for (const topology::NumaNode& node : found.nodes) PutNode(json, node);
  json.Close(']').Key("nics").Open('[');
  for (const topology::Nic& nic : found.nics) PutNic(json, nic);
  json.Close(']').Key("accelerators").Open('[');
  for (const topology::Device& accelerator : found.accelerators)
    json.Open('{')
        .Key("location")
        .Text(accelerator.location)
        .Key("pci_path")
        .TextOrNull(accelerator.pci_path)
        .Key("numa_node")
        .Number(static_cast<int64_t>(accelerator.numa_node))
        .Close('}');
  json.Close(']').Key("matrix").Raw(topology::ToMooncakeJson(MatrixOf(found)));
  json.Key("notes").Open('[');
  for (const std::string& note : found.notes) json.Text(note);
  std::puts(json.Close(']').Close('}').str().c_str());
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += Str(text.empty() ? "" : " ", name);
  return text.empty() ? "-" : text;
}

void PrintText(const topology::Topology& found) {
  for (const topology::NumaNode& node : found.nodes)
    std::printf("node        %d: %zu cpus, %.1f GiB\n", node.id, node.cpus.size(),
                static_cast<double>(node.memory_bytes) / (1 << 30));
  for (const topology::Nic& nic : found.nics) {
    const std::string speed =
        nic.speed_mbps == 0 ? "speed unknown" : Str(nic.speed_mbps / 1000.0, " Gb/s");
    std::printf("nic         %s: %s, %s, node %d, %s%s\n", nic.name.c_str(), KindText(nic.kind),
                speed.c_str(), nic.numa_node, nic.up ? "up" : "down",
                nic.is_virtual ? ", virtual" : "");
  }
  for (const topology::Device& accelerator : found.accelerators)
    std::printf("accelerator %s: node %d\n", accelerator.location.c_str(), accelerator.numa_node);
  for (const auto& [location, affinity] : MatrixOf(found))
    std::printf("affinity    %s: near %s, far %s\n", location.c_str(),
                Joined(affinity.preferred).c_str(), Joined(affinity.others).c_str());
  for (const std::string& note : found.notes) std::printf("note        %s\n", note.c_str());
}

}  // namespace

int RunTopo(const TopoArguments& arguments) {
  const auto found = topology::Probe();
  if (!found.ok()) {
    std::fprintf(stderr, "moonpool topo: %s\n", found.status().ToString().c_str());
    return kFailed;
  }
  if (arguments.mooncake)
    std::puts(topology::ToMooncakeJson(MatrixOf(*found)).c_str());
  else if (arguments.json)
    PrintJson(*found);
  else
    PrintText(*found);
  return kOk;
}

}  // namespace moonpool::cli
