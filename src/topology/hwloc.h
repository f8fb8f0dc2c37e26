#pragma once

// What hwloc knows about the place of I/O devices, through the library that is installed at run
// time (libhwloc.so.15), if any. Threads: thread-safe; it takes tens of milliseconds.

#include <map>
#include <string>

namespace moonpool::topology {

struct HwlocView {
  std::string version;  // "2.9"; empty: no library, and `missing` says why
  std::string missing;
  std::map<std::string, int> node_of;  // "eth0", "mlx5_0" -> NUMA node
};

HwlocView AskHwloc();

}  // namespace moonpool::topology
