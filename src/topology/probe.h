#pragma once

// Finds out the topology of this machine from sysfs; hwloc, when its library is installed, fills in
// the NUMA node of devices for which sysfs has none. Nothing is linked, opened or changed.
//
// Threads: thread-safe. Errors: kUnavailable when `root` has no sysfs at all; whatever else is
// missing or malformed leaves a default and a note.

#include <string>

#include "base/status.h"
#include "topology/topology.h"

namespace moonpool::topology {

// `root` is where "sys" lies; tests give a tree of their own, which hwloc is not asked about.
Result<Topology> Probe(const std::string& root = "/");

}  // namespace moonpool::topology
