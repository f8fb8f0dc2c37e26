#pragma once

// Network: imaginary nodes in one process, joined by imaginary links, for unit tests and simulation. Each
// node has a transport that keeps the contract (transport/transport.h); real bytes move between the real
// memory of the nodes, checked by the owner's real RegionTable, at virtual times that follow from
// latencies, bandwidths and a seed. The same calls in the same order give the same run.
//
// A slice moves in steps of step_bytes, each an event of its own, so that a fault in mid-transfer leaves
// part of the bytes. A step is made only before the slice's deadline: a node that is frozen past it and
// thawed stores nothing.
//
// Not responsible for: moving the clock (whoever owns it advances it to NextEventAt(), then calls Step()
// until it returns false; Lane::Poll runs what is due, too), polling lanes, deciding on faults. It is no leaf: no list of transports has it.
//
// Nodes are named by NodeId::node. A node appears when its transport is made; making one under the same
// name with another incarnation is a restart.
//
// Threads: thread-safe (one mutex), deterministic only when one thread makes the calls.
// Ownership: outlives its transports; borrows the clock.
// Cost: about 150 bytes per slice in flight and 24 per event; one event per slice at any time.
//
//   testing::ManualClock clock;
//   fake::Network network(clock, {.seed = 7});
//   auto transport = network.MakeFactory().create(environment, {});
//   …
//   clock.AdvanceTo(network.NextEventAt());
//   while (network.Step()) {
//   }

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "transport/transport.h"

namespace moonpool::fake {

class Core;

// One direction between two nodes.
struct Link {
  Duration latency = std::chrono::microseconds(20);
  uint64_t bandwidth =
      10'000'000'000;  // bytes per second, shared by what leaves or enters one node
  uint32_t loss_ppm =
      0;  // slices whose connection breaks on the way: kUnavailable, part of the bytes moved
  uint32_t corrupt_ppm = 0;  // slices that arrive with a wrong byte: kCorrupt
};

struct NetworkOptions {
  uint64_t seed = 1;
  Link link = {};                   // of all pairs of which SetLink says nothing
  uint32_t step_bytes = 16 * 1024;  // at least 1
  uint64_t slice_bytes = uint64_t{256} * 1024;
  uint32_t slice_pieces_max = 512;
  uint32_t lane_slices_max = 64;  // in flight per lane; more is left with the caller
};

enum class Crash {
  kProcess,  // its kernel answers: peers get kUnavailable
  kMachine,  // silence: peers' slices end by their deadline
};

class Network {
 public:
  Network(Clock& clock, const NetworkOptions& options);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Makes the transport of node Environment::self, called "fake".
  transport::Factory MakeFactory();

  // When the next event is due; kNever: there is none.
  Time NextEventAt() const;
  // Runs the first event if it is due by the clock; false: none is.
  bool Step();
  uint64_t events_run() const;

  // Links and faults; a node that does not exist (yet) may be named.
  void SetLink(uint64_t from, uint64_t to, const Link& link);
  // Nothing gets through in either direction; slices wait, and go on when it heals.
  void SetPartitioned(uint64_t a, uint64_t b, bool partitioned);
  // A frozen node neither serves nor stores nor polls; what waits for it goes on when it thaws.
  void SetFrozen(uint64_t node, bool frozen);
  // OpenPeer to it is kUnavailable.
  void SetRefusing(uint64_t node, bool refusing);
  // Its memory is touched no more; its slices vanish. Its Transport and lanes are to be destroyed next.
  void CrashNode(uint64_t node, Crash kind);
  // The next `count` slices that complete their last step towards or from `node` arrive corrupt.
  void CorruptNext(uint64_t node, uint32_t count);

 private:
  const std::unique_ptr<Core> core_;
};

}  // namespace moonpool::fake
