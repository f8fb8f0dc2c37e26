#pragma once

// Batch: the state of one submitted batch, from Submit to Release. A batch has groups (one per segment and direction);
// a group has a plan, whose slices travel independently. The batch is done when every group has settled and, if asked
// for, its notifications have been delivered.
//
// Counting: `outstanding` of a group counts slices handed to workers and not yet returned. The thread that brings it to
// zero settles the group: finished, or its failed slices are repaired. No slice of a group is in a worker's hands while
// the group is being repaired or planned again, so the plan is then free to change.
//
// Ownership: the table of live batches holds a batch until Release; `keep_alive` holds it while slices or repairs are
// under way. Threads: fields say who guards them.

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/options.h"
#include "engine/plan.h"
#include "engine/segment.h"

namespace moonpool::engine {

inline constexpr int kWorkersMax = 16;

struct GroupState {
  // Constant after Submit.
  std::shared_ptr<SegmentState> segment;
  transport::Op op = transport::Op::kRead;

  // The request as it came, kept until there is a plan (a plan can be turned back into ranges).
  std::vector<uint64_t> local, remote, lengths;

  // Written while outstanding is 0, read by workers while it is not.
  std::shared_ptr<Incarnation> incarnation;  // whom the plan is for; null: no plan yet
  Plan plan;

  std::atomic<uint32_t> outstanding{0};
  // True once a slice has gone past connecting: the peer's or our memory may have been touched on its behalf.
  std::atomic<bool> touched{false};

  // Guarded by the batch's mutex.
  std::vector<uint32_t> failed;  // slices to send again
  Status last_failure;

  // Only the thread that settles or repairs the group.
  uint32_t rounds = 0;          // of repair
  Time repair_since = kNever;   // since when the peer has not been reached
  uint64_t done_at_repair = 0;  // the batch's bytes_done then
};

struct Batch {
  explicit Batch(size_t group_count) : groups(group_count) {}

  // Constant after Submit.
  BatchHandle handle = 0;
  Time deadline = kNever;
  Priority priority = Priority::kBulk;
  bool notify = false;
  bool to_queue = false;
  std::string payload;
  uint64_t sequence = 0;  // of its notifications
  uint64_t bytes_total = 0;
  std::vector<RegionKey> pinned;  // local regions, released when done
  std::vector<GroupState> groups;

  std::atomic<uint64_t> bytes_done{0};
  std::atomic<uint32_t> retries{0};
  std::atomic<uint32_t> groups_left{0};
  std::atomic<uint32_t> transports_used{0};  // bit per transport index
  std::atomic<bool> failing{false};          // set with `failure`; workers drop its slices
  // Slices in the hands of each worker; a waiter drives a worker that has some.
  std::array<std::atomic<uint32_t>, kWorkersMax> on_worker{};
  std::atomic<uint32_t> base_worker{0};  // the one that a waiter drives first; a hint
  // Stored with release after everything else; guards nothing further.
  std::atomic<bool> done{false};

  Mutex mutex;
  CondVar finished;
  Status failure MOONPOOL_GUARDED_BY(mutex);
  std::string failed_peer MOONPOOL_GUARDED_BY(mutex);
  std::string failed_transport MOONPOOL_GUARDED_BY(mutex);
  transport::Phase failed_phase MOONPOOL_GUARDED_BY(mutex) = transport::Phase::kNone;
  bool released MOONPOOL_GUARDED_BY(mutex) = false;
  std::shared_ptr<Batch> keep_alive MOONPOOL_GUARDED_BY(mutex);
};

// Where a slice failed, for the message.
struct Failure {
  Code code = Code::kInternal;
  transport::Phase phase = transport::Phase::kNone;
  std::string peer;
  std::string transport;
  std::string cause;
};

// Records the first failure; true for the one that was first.
bool RecordFailure(Batch& batch, const Failure& failure);

// Live batches by handle (index and generation). Threads: thread-safe.
class BatchTable {
 public:
  explicit BatchTable(uint32_t limit) : limit_(limit) {}
  // kExhausted above the limit.
  Result<BatchHandle> Add(std::shared_ptr<Batch> batch);
  std::shared_ptr<Batch> Get(BatchHandle handle) const;  // null: unknown or forgotten
  void Remove(BatchHandle handle);
  size_t size() const;
  std::vector<std::shared_ptr<Batch>> All() const;

 private:
  struct Entry {
    uint32_t generation = 1;
    std::shared_ptr<Batch> batch;  // shared with workers while under way
  };
  const uint32_t limit_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ MOONPOOL_GUARDED_BY(mutex_);
  size_t live_ MOONPOOL_GUARDED_BY(mutex_) = 0;
};

}  // namespace moonpool::engine
