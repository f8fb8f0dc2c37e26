#pragma once

// Cluster: real engines (engine/engine.h, without threads) in one process, joined by the fake transport and by a control
// plane that loses requests and replies, both driven by one manual clock and one seed.
//
// Not responsible for: what the engines are asked to do (run.h). Threads: thread-bound.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "engine/control.h"
#include "engine/engine.h"
#include "testing/manual_clock.h"
#include "transport/fake/network.h"

namespace moonpool::sim {

// One process: an engine and its memory. A restart makes a new one; the old memory is kept, to see late stores.
struct Process {
  std::unique_ptr<engine::Engine> engine;
  std::vector<uint8_t> memory;
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory.data()); }
};

struct ClusterOptions {
  uint64_t seed = 1;
  size_t nodes = 4;
  size_t memory_bytes = size_t{256} * 1024;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  size_t size() const { return processes_.size(); }
  Process& at(size_t node) { return *processes_[node]; }
  bool up(size_t node) const { return processes_[node]->engine != nullptr; }
  bool frozen(size_t node) const { return frozen_.count(node) > 0; }
  static std::string AddressOf(size_t node);

  // Faults.
  void Crash(size_t node, fake::Crash kind);
  void Restart(size_t node);
  void Freeze(size_t node, bool frozen);
  void Partition(size_t a, size_t b, bool partitioned);
  void SetNoise(uint32_t loss_ppm, uint32_t corrupt_ppm, uint32_t control_loss_ppm);
  void Heal();  // thaws, joins and restarts everything; no more noise

  // Runs every live engine and the network, then moves time to the next event, 1 ms at most.
  void Tick();
  testing::ManualClock& clock() { return clock_; }

 private:
  class SimControl;
  bool Reachable(size_t from, size_t to) const;
  void Start(size_t node);

  const ClusterOptions options_;
  testing::ManualClock clock_;
  Logger log_{LogLevel::kOff};
  Random random_;
  fake::Network network_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Process>> past_;  // crashed: their memory stays
  std::vector<engine::Host*> hosts_;            // null: down
  std::set<size_t> frozen_;
  std::set<std::pair<size_t, size_t>> partitions_;
  std::vector<fake::Crash> crashes_;
  uint32_t control_loss_ppm_ = 0;
  uint64_t incarnations_ = 0;
};

}  // namespace moonpool::sim
