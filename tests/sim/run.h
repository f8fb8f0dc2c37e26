#pragma once

// One simulated run: random batches between the nodes of a Cluster while faults come and go, everything from one seed.
//
// Invariants, checked all along:
//  1. A batch is done by its deadline plus transport::kSettleMax while its node runs.
//  2. Done and ok means that every byte is there, and of the one source.
//  3. Done and failed means that nothing of it is stored any more: its ranges on both sides are refilled then, and must be
//     unchanged at the end; so must the memory of crashed processes.
//  4. A batch never mixes two lives of its peer: a batch done with ok left all its bytes in one of them.
//  5. A notification arrives at most once, only after its batch's data, and surely when the batch is ok.
//  6. After healing, every pair of nodes transfers again within 5 s, and no slice is left in any engine.

#include <cstdint>
#include <string>

namespace moonpool::sim {

struct RunResult {
  std::string error;  // empty: all invariants held; else what broke, with the virtual time
  uint64_t batches_ok = 0;
  uint64_t batches_failed = 0;
  uint64_t notifications = 0;
  uint64_t faults = 0;
};

// `steps` random actions of the workload, then healing.
RunResult Run(uint64_t seed, int steps);

}  // namespace moonpool::sim
