#pragma once

// The commands of the program `moonpool`. Each prints to standard output, what went wrong to
// standard error, and returns the exit status: 0 ok, 1 failed (2, wrong usage, is the parser's).
// Threads: main only.

#include <string>
#include <vector>

namespace moonpool::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

struct InfoArguments {
  bool options = false;  // the table of engine options instead
  bool json = false;
  std::vector<std::string> transports;
};
int RunInfo(const InfoArguments& arguments);

struct TopoArguments {
  bool json = false;
  bool mooncake = false;  // the affinity matrix alone, in Mooncake's shape
};
int RunTopo(const TopoArguments& arguments);

struct ProbeArguments {
  std::string peer;
  std::string registry;
  std::vector<std::string> transports;
  double timeout = 5;  // seconds
  bool json = false;
};
int RunProbe(const ProbeArguments& arguments);

struct RegistryArguments {
  std::string listen;
  bool json = false;
};
// Serves until SIGINT or SIGTERM.
int RunRegistry(const RegistryArguments& arguments);

}  // namespace moonpool::cli
