#include "topology/hwloc.h"

namespace moonpool::topology {

// Built where hwloc's header is not installed (CMakeLists.txt chooses).
HwlocView AskHwloc() { return {.version = {}, .missing = "built without hwloc.h", .node_of = {}}; }

}  // namespace moonpool::topology
