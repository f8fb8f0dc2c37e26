#pragma once

// Engine: moves bytes between this process's registered regions and other processes'. Peers are
// found at host:port or by name through a registry; batches of reads and writes run asynchronously,
// each with a deadline.
//
// What it promises: every call ends by its deadline. When a batch is done, ok or not, nothing of it
// touches memory any more on either side, and the caller may free or reuse what it named. Ok means
// that every byte is there. An error names the peer, transport, phase and cause. A peer that is
// dead, frozen, restarted or hostile hurts only its own batches.
//
// Not responsible for: allocating remote memory, knowing what is at an address (the caller agrees
// that with the peer), order between batches or between descriptors of one batch.
//
// Threads: thread-safe, except that the destructor must be the last call. A thread inside Wait may
// do the batch's work itself (no hand-over to a worker thread). Ownership: spans and strings of a
// request are copied before Submit returns; the memory that descriptors name belongs to the batch
// until it is done.
//
//   auto engine = Engine::Create(options, world);
//   (*engine)->Register(buffer, size, Rights::kReadWrite);
//   auto segment = (*engine)->Open("10.0.0.7:1234", 5s);
//   const Group group{*segment, Op::kWrite, locals, remotes, lengths};
//   auto batch = (*engine)->Submit({.groups = {&group, 1}});
//   Status status = (*engine)->Wait(*batch, 5s);
//   (*engine)->Release(*batch);

#include <memory>
#include <string>
#include <vector>

#include "engine/control.h"
#include "engine/options.h"
#include "registry/registry.h"
#include "transport/transport.h"

namespace moonpool::engine {

class Core;

// What the composition root gives; clock and log outlive the engine.
struct World {
  Clock& clock;
  Logger& log;
  std::vector<transport::Factory> transports;    // e.g. transport::BuiltinFactories()
  std::unique_ptr<registry::Registry> registry;  // null: names are host:port
  std::unique_ptr<Control> control;              // null: RPC over TCP; tests give another
  transport::NodeId id;                          // zero: random
  bool threads = true;                           // false: nothing runs but in Drive (simulation)
};

class Engine {
 public:
  // kInvalidArgument names the option and its allowed values; kAlreadyExists: the port is taken, kUnavailable: the address cannot be
  // bound.
  static Result<std::unique_ptr<Engine>> Create(const Options& options, World world);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::string& name() const;
  const std::string& address() const;  // host:port that peers use
  Info Describe() const;

  // Memory. See memory/region_table.h for errors. Deregister waits for batches that use the region
  // until `timeout`.
  Result<RegionInfo> Register(void* address, uint64_t size, Rights rights);
  Status Deregister(void* address, Duration timeout);
  // Zeroed memory that same-host peers can map (memfd), registered with `rights`; page-aligned.
  Result<RegionInfo> Allocate(uint64_t size, Rights rights, bool huge_pages);
  Status Free(void* address, Duration timeout);

  // Peers. Open finds the peer, checks that it answers and opens a path. Opening one twice gives
  // the same handle.
  Result<SegmentHandle> Open(const std::string& name, Duration timeout);
  Status CloseSegment(SegmentHandle segment);
  // With `refresh`, asks the peer again; else what was last heard.
  Result<SegmentInfo> Segment(SegmentHandle segment, bool refresh, Duration timeout);

  // Batches. Submit checks everything and never blocks on a peer.
  // kInvalidArgument: names group, descriptor and what is wrong. kExhausted: batches_max live
  // batches.
  Result<BatchHandle> Submit(const BatchRequest& request);
  // The batch's outcome; kTimedOut with message "still running" when it is not done within
  // `timeout` (the batch goes on).
  Status Wait(BatchHandle batch, Duration timeout);
  Result<BatchStatus> Poll(BatchHandle batch);
  // Asks; the batch is done soon, by its deadline at the latest, with kCancelled unless it was
  // quicker.
  Status Cancel(BatchHandle batch);
  // Forgets a batch; one that still runs is cancelled, and forgotten when it has ended.
  Status Release(BatchHandle batch);
  // Handles of completed batches that were submitted with to_queue, each once; waits for the first
  // until `timeout`.
  std::vector<BatchHandle> NextCompleted(size_t max, Duration timeout);
  // Readable (eventfd) while NextCompleted or TakeNotifications may have something; for event
  // loops.
  int event_fd() const;

  // Notifications.
  Status Notify(SegmentHandle segment, const std::string& payload, Duration timeout);
  std::vector<Notification> TakeNotifications(size_t max, Duration timeout);

  // Without threads: does what is due at `now`; true when something was done.
  bool Drive();

  // Ends everything within 2 s: cancels batches, fails waiting calls with kCancelled, withdraws the
  // registry entry. Idempotent. RequestClose only asks (async-signal-safe); waiting calls return,
  // and the next call or the worker closes.
  void Close();
  void RequestClose();

 private:
  explicit Engine(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace moonpool::engine
