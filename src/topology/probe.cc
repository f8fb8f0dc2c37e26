#include "topology/probe.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/str.h"
#include "topology/hwloc.h"
#include "topology/sysfs.h"

namespace moonpool::topology {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVendorNvidia = 0x10de;
constexpr int64_t kVendorAmd = 0x1002;
// PCI classes without the programming interface: 3D controller, display controller, accelerator.
constexpr int64_t kClassVga = 0x0300;
constexpr int64_t kClass3d = 0x0302;
constexpr int64_t kClassDisplay = 0x0380;
constexpr int64_t kClassAccelerator = 0x1200;

// "Node 0 MemTotal:        8123456 kB"
uint64_t NodeMemory(const fs::path& node) {
  const std::string text = sysfs::Read(node / "meminfo");
  const size_t label = text.find("MemTotal:");
  if (label == std::string::npos) return 0;
  const size_t digit = text.find_first_of("0123456789", label);
  if (digit == std::string::npos) return 0;
  uint64_t kib = 0;
  std::from_chars(text.data() + digit, text.data() + text.size(), kib);
  return kib * 1024;
}

std::vector<int> ParseDistances(std::string_view text) {
  std::vector<int> all;
  int value = 0;
  while (true) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{}) return all;
    all.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
}

void ProbeNodes(const fs::path& sys, Topology& topology) {
  const fs::path base = sys / "devices/system/node";
  for (const std::string& name : sysfs::List(base)) {
    int id = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with("node") || std::from_chars(name.data() + 4, end, id).ptr != end ||
        name.size() == 4) {
      continue;
    }
    NumaNode node;
    node.id = id;
    node.cpus = sysfs::ParseCpuList(sysfs::Read(base / name / "cpulist"));
    node.memory_bytes = NodeMemory(base / name);
    topology.nodes.push_back(std::move(node));
  }
  std::sort(topology.nodes.begin(), topology.nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  // The n-th distance belongs to the n-th node that exists.
  for (NumaNode& node : topology.nodes) {
    const auto distances = ParseDistances(sysfs::Read(base / Str("node", node.id) / "distance"));
    for (size_t i = 0; i < std::min(distances.size(), topology.nodes.size()); ++i) {
      node.distances[topology.nodes[i].id] = distances[i];
    }
  }
  if (topology.nodes.empty()) {
    NumaNode whole;
    whole.cpus = sysfs::ParseCpuList(sysfs::Read(sys / "devices/system/cpu/online"));
    topology.nodes.push_back(std::move(whole));
    topology.notes.emplace_back("no NUMA nodes in sysfs: one is assumed");
  }
}

int NodeOfDevice(const fs::path& device) {
  const auto node = sysfs::ReadNumber(device / "numa_node");
  return node && *node >= 0 && *node < 65536 ? static_cast<int>(*node) : -1;
}

// What a network interface and an RDMA device have in common.
Nic ProbeDevice(const fs::path& entry, NicKind kind) {
  Nic nic;
  nic.name = entry.filename().string();
  nic.kind = kind;
  const fs::path device = sysfs::Resolve(entry / "device");
  nic.is_virtual = device.empty();
  if (nic.is_virtual) return nic;
  nic.pci_path = sysfs::PciPath(device);
  nic.driver = sysfs::LinkName(device / "driver");
  // The interface of a virtio device hangs below the PCI device, which is the one with a node.
  nic.numa_node = NodeOfDevice(device);
  if (nic.numa_node < 0) nic.numa_node = NodeOfDevice(device.parent_path());
  return nic;
}

Nic ProbeInterface(const fs::path& entry) {
  Nic nic = ProbeDevice(entry, NicKind::kNetwork);
  const auto speed = sysfs::ReadNumber(entry / "speed");  // -1, or no answer while down
  if (speed && *speed > 0) nic.speed_mbps = static_cast<uint64_t>(*speed);
  const std::string state = sysfs::Read(entry / "operstate");
  const auto carrier = sysfs::ReadNumber(entry / "carrier");
  nic.up = state == "up" || (state == "unknown" && carrier == 1);
  nic.via = sysfs::List(entry / "device/infiniband");
  return nic;
}

// "200 Gb/sec (4X HDR)"
uint64_t PortSpeed(const fs::path& port) {
  const std::string text = sysfs::Read(port / "rate");
  double gbps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gbps);
  return error == std::errc{} && gbps > 0 && gbps < 1e6 ? static_cast<uint64_t>(gbps * 1000) : 0;
}

Nic ProbeRdma(const fs::path& entry) {
  Nic nic = ProbeDevice(entry, NicKind::kRdma);
  for (const std::string& port : sysfs::List(entry / "ports")) {
    const bool active =
        sysfs::Read(entry / "ports" / port / "state").find("ACTIVE") != std::string::npos;
    nic.up = nic.up || active;
    if (active) nic.speed_mbps = std::max(nic.speed_mbps, PortSpeed(entry / "ports" / port));
  }
  nic.via = sysfs::List(entry / "device/net");
  // Soft-RoCE has no device of its own; it is as real as the interface below it.
  return nic;
}

void ProbeNics(const fs::path& sys, Topology& topology) {
  for (const std::string& name : sysfs::List(sys / "class/net")) {
    std::error_code error;
    if (!fs::is_directory(sys / "class/net" / name, error)) continue;  // "bonding_masters"
    topology.nics.push_back(ProbeInterface(sys / "class/net" / name));
  }
  for (const std::string& name : sysfs::List(sys / "class/infiniband")) {
    Nic nic = ProbeRdma(sys / "class/infiniband" / name);
    const std::string below = sysfs::Read(sys / "class/infiniband" / name / "parent");
    for (const Nic& other : topology.nics) {
      if (!nic.is_virtual || other.name != below || other.kind != NicKind::kNetwork) continue;
      nic.via = {below};
      nic.is_virtual = other.is_virtual;
      nic.numa_node = other.numa_node;
      nic.pci_path = other.pci_path;
    }
    topology.nics.push_back(std::move(nic));
  }
}

void ProbeAccelerators(const fs::path& sys, Topology& topology) {
  int cuda = 0;
  int hip = 0;
  for (const std::string& name : sysfs::List(sys / "bus/pci/devices")) {
    const fs::path device = sysfs::Resolve(sys / "bus/pci/devices" / name);
    const int64_t kind = sysfs::ReadNumber(device / "class").value_or(0) >> 8;
    const int64_t vendor = sysfs::ReadNumber(device / "vendor").value_or(0);
    const bool display = kind == kClassVga || kind == kClass3d || kind == kClassDisplay;
    std::string location;
    if (vendor == kVendorNvidia && (kind == kClassVga || kind == kClass3d)) {
      location = Str("cuda:", cuda++);
    } else if (vendor == kVendorAmd && (display || kind == kClassAccelerator)) {
      location = Str("hip:", hip++);
    } else {
      continue;
    }
    topology.accelerators.push_back({location, sysfs::PciPath(device), NodeOfDevice(device)});
  }
}

void FillFromHwloc(Topology& topology) {
  const HwlocView view = AskHwloc();
  if (view.version.empty()) {
    topology.notes.push_back(view.missing);
    return;
  }
  topology.notes.push_back(Str("hwloc ", view.version));
  for (Nic& nic : topology.nics) {
    const auto it = view.node_of.find(nic.name);
    if (nic.numa_node < 0 && it != view.node_of.end()) nic.numa_node = it->second;
  }
}

}  // namespace

Result<Topology> Probe(const std::string& root) {
  const fs::path sys = fs::path(root) / "sys";
  std::error_code error;
  if (!fs::is_directory(sys / "devices", error) && !fs::is_directory(sys / "class", error)) {
    return Status(Code::kUnavailable, Str("no sysfs at ", sys.string()));
  }
  Topology topology;
  ProbeNodes(sys, topology);
  ProbeNics(sys, topology);
  ProbeAccelerators(sys, topology);
  if (root == "/") FillFromHwloc(topology);
  // A machine with one node leaves no choice.
  if (topology.nodes.size() == 1) {
    const int only = topology.nodes.front().id;
    for (Nic& nic : topology.nics) {
      if (nic.numa_node < 0 && !nic.is_virtual) nic.numa_node = only;
    }
    for (Device& a : topology.accelerators) {
      if (a.numa_node < 0) a.numa_node = only;
    }
  }
  return topology;
}

}  // namespace moonpool::topology
