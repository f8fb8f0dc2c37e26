#pragma once

// Topology: what this machine is made of, as far as moving bytes is concerned (NUMA nodes, network
// interfaces, RDMA devices, accelerators), and the affinity matrix: which NICs are near which
// memory. Plain data, made by topology/probe.h or by hand in tests.
//
// Words: a *location* names memory: "cpu:0" (NUMA node 0), "cuda:1", "hip:0"; "*" is any memory.
//
// Not responsible for: measuring speed, choosing a path for a slice (the engine), opening devices.
// Threads: values; the functions are pure.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moonpool::topology {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;
  uint64_t memory_bytes = 0;
  std::map<int, int> distances;  // node -> the firmware's relative distance, 10 is "here"
};

enum class NicKind : uint8_t { kNetwork = 0, kRdma = 1 };

struct Nic {
  std::string name;  // "eth0", "mlx5_0"
  NicKind kind = NicKind::kNetwork;
  std::string driver;       // "virtio_net"; empty: unknown
  uint64_t speed_mbps = 0;  // 0: the driver does not say
  int numa_node = -1;       // -1: unknown
  std::string pci_path;     // of the device, from the root: "pci0000:00/0000:00:03.0"; or empty
  bool is_virtual = false;  // has no device behind it (lo, bridges); listed, never preferred
  bool up = false;          // carries traffic
  std::vector<std::string> via;  // a network interface's RDMA devices, and the other way round
};

// An accelerator with memory of its own.
struct Device {
  std::string location;  // "cuda:0"; numbered in the order of PCI addresses
  std::string pci_path;
  int numa_node = -1;
};

struct Topology {
  std::vector<NumaNode> nodes;       // by id; at least one
  std::vector<Nic> nics;             // by kind, then name
  std::vector<Device> accelerators;  // by location
  std::vector<std::string> notes;    // what could not be found out, and what helped ("hwloc 2.9")
};

// How many bridges lie between two devices: 0 the same device, 1 siblings behind one bridge, and so
// on. kFar when one path is empty or they hang from different root complexes.
inline constexpr int kFar = 1000;
int PciDistance(std::string_view a, std::string_view b);

// The near NICs first, the rest after; within each, by name.
struct Affinity {
  std::vector<std::string> preferred;
  std::vector<std::string> others;
  friend bool operator==(const Affinity&, const Affinity&) = default;
};
// By location.
using Matrix = std::map<std::string, Affinity>;

// One row for each NUMA node and each accelerator, over the NICs of one kind that are real and up.
// "cpu:N" prefers the NICs of node N; an accelerator those of its node at the smallest PCI
// distance. A row that would prefer none prefers the nearest by NUMA distance, so that only a
// machine without NICs of this kind has empty rows.
Matrix AffinityMatrix(const Topology& topology, NicKind kind);

// The NICs of the matrix from the best for memory at `location`: preferred, then others. For "*" or
// a location without a row: all, by the number of rows that prefer each, then by name.
std::vector<std::string> RankNics(const Matrix& matrix, std::string_view location);

// {"cpu:0":[["mlx5_0"],["mlx5_1"]],…}, the shape that Mooncake publishes and accepts.
std::string ToMooncakeJson(const Matrix& matrix);
// kInvalidArgument names the location and what is wrong with it. At most 1 MiB of text.
Result<Matrix> FromMooncakeJson(std::string_view json);

}  // namespace moonpool::topology
