#pragma once

// Core: the engine behind engine.h. Its parts: memory (RegionTable, ArenaSet), segments (finding peers, choosing paths,
// repairing: core_peers.cc), batches (submitting, settling, waiting: core_batches.cc), workers and tasks.
//
// How a batch goes: Submit checks and pins; StartGroup plans each group against the segment's view and dispatches its
// slices to workers, or lets it wait for the segment; workers call SliceDone; the last slice of a group settles it: done,
// or its failed slices wait for a repair of the segment, after which Resume sends them again or, to another incarnation,
// plans the whole group again if none of it had succeeded; the last group finishes the batch.
//
// Who waits where: a group that waits is in its segment's `waiting` list; whoever takes it out of there, under the
// segment's mutex, settles or resumes it. That is what makes failing, expiring and repairing one race-free choice.
//
// Threads: thread-safe. Lock order: close_mutex_ before any other; otherwise no mutex is held while another is taken.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/batch.h"
#include "engine/control.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/segment.h"
#include "engine/task_runner.h"
#include "engine/worker.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "registry/registry.h"

namespace moonpool::engine {

class Core final : public WorkerHooks, public Host {
 public:
  Core(const Options& options, World world);
  ~Core() override;
  Status Start();

  // Host.
  SegmentDescriptor DescribeSelf() const override;
  Status Deliver(const NotifyMessage& message) override;
  // WorkerHooks.
  void SliceDone(const SliceRef& ref, Path* path, const transport::Completion& completion) override;

  // The calls of engine.h.
  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  Info Describe() const;
  Result<RegionInfo> Register(void* address, uint64_t size, Rights rights);
  Status Deregister(void* address, Duration timeout);
  Result<RegionInfo> Allocate(uint64_t size, Rights rights, bool huge_pages);
  Status Free(void* address, Duration timeout);
  Result<SegmentHandle> Open(const std::string& name, Duration timeout);
  Status CloseSegment(SegmentHandle handle);
  Result<SegmentInfo> DescribeSegment(SegmentHandle handle, bool refresh, Duration timeout);
  Result<BatchHandle> Submit(const BatchRequest& request);
  Status Wait(BatchHandle handle, Duration timeout);
  Result<BatchStatus> Poll(BatchHandle handle);
  Status Cancel(BatchHandle handle);
  Status Release(BatchHandle handle);
  Status Notify(SegmentHandle handle, const std::string& payload, Duration timeout);
  bool Drive();
  void Close();
  void RequestClose();

  Inbox& inbox() { return inbox_; }
  Clock& clock() { return clock_; }

 private:
  using BatchPtr = std::shared_ptr<Batch>;
  using SegmentPtr = std::shared_ptr<SegmentState>;
  using IncarnationPtr = std::shared_ptr<Incarnation>;
  struct TransportEntry {
    std::string name;
    std::unique_ptr<transport::Transport> transport;  // null: not usable, for `reason`
    std::string reason;
  };
  // The outcome of reaching a segment.
  struct Reached {
    IncarnationPtr incarnation;
    std::shared_ptr<const RegionView> view;
  };

  // core.cc
  Status MakeTransports();
  Status MakeWorkers();
  Status CheckOpen() const;
  Duration TimeoutOr(Duration timeout) const {
    return timeout.count() > 0 ? timeout : options_.timeout;
  }
  void CloseOnRequest();
  void DrainWorkers(Time until);
  void AbandonBatches();

  // core_batches.cc
  Status CheckRequest(const BatchRequest& request) const;
  Status PinLocal(Batch& batch, const BatchRequest& request);
  void Unpin(Batch& batch);
  void StartGroup(const BatchPtr& batch, size_t group, const Ranges& ranges, bool wait_follows);
  void Dispatch(Batch& batch, size_t group, const std::vector<uint32_t>& slices, bool wait_follows);
  int BaseWorker(bool wait_follows) const;
  PlanLimits LimitsOf(const Path& path) const;
  void SettleGroup(Batch& batch, size_t group);
  void GroupDone(Batch& batch);
  void FailBatch(Batch& batch, const Failure& failure);
  void Finish(Batch& batch);
  BatchPtr Hold(Batch& batch);
  void PostNotify(const BatchPtr& batch, size_t group, Duration backoff);
  void DeliverNotify(const BatchPtr& batch, size_t group, Duration backoff);
  static size_t NextToNotify(const Batch& batch, size_t index);

  // core_peers.cc
  Result<SegmentPtr> GetSegment(SegmentHandle handle) const;
  Result<Reached> Reach(const SegmentPtr& segment, Time deadline, Failure* failure);
  Result<std::string> ResolveName(const std::string& name, Time deadline);
  Status ChoosePath(const SegmentPtr& segment, const IncarnationPtr& incarnation, Time deadline);
  Result<Path*> OpenPath(Incarnation& incarnation, size_t transport, Time deadline);
  Reached Publish(const SegmentPtr& segment, IncarnationPtr incarnation,
                  std::shared_ptr<const RegionView> view);
  void Retire(const IncarnationPtr& incarnation);
  void WaitForSegment(const SegmentPtr& segment, const BatchPtr& batch, size_t group);
  bool TakeWaiting(const SegmentPtr& segment, const Batch& batch, size_t group);
  void ExpireWaiting(const SegmentPtr& segment);
  void Repair(const SegmentPtr& segment, Duration backoff);
  void FailWaiting(const SegmentPtr& segment, const Failure& failure, Duration backoff);
  void Resume(const WaitingGroup& waiting, const Reached& reached);
  void Replan(const WaitingGroup& waiting, const Reached& reached);
  void Resend(const WaitingGroup& waiting, const Reached& reached);

  const Options options_;
  World world_;
  Clock& clock_;
  Logger& log_;
  const transport::NodeId id_;

  memory::ArenaSet arenas_;
  memory::RegionTable regions_;
  Inbox inbox_;

  // Constant after Start. Destroyed after everything below, which holds peers and lanes of the transports.
  std::string name_;
  std::string address_;
  registry::OwnerToken registered_ = 0;
  std::vector<TransportEntry> transports_;  // best first
  TaskRunner tasks_;
  BatchTable batches_;

  mutable Mutex segments_mutex_;
  std::map<std::string, SegmentPtr> segments_by_name_ MOONPOOL_GUARDED_BY(segments_mutex_);
  std::vector<std::pair<uint32_t, SegmentPtr>> segments_
      MOONPOOL_GUARDED_BY(segments_mutex_);  // generation, segment

  Mutex memory_mutex_;
  std::unordered_map<uint64_t, std::pair<uint32_t, std::shared_ptr<memory::Arena>>> allocations_
      MOONPOOL_GUARDED_BY(memory_mutex_);  // address -> arena number, arena

  std::vector<std::unique_ptr<Worker>> workers_;  // constant after Start

  std::atomic<uint64_t> next_sequence_{1};
  std::atomic<uint64_t> batches_completed_{0};
  std::atomic<uint64_t> batches_failed_{0};
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> retries_{0};

  std::atomic<bool> closing_{false};  // set first; every call looks at it
  std::atomic<bool> started_{false};
  std::atomic<bool> ended_{false};  // Close has done its work; what is not done never will be
  UniqueFd close_fd_;               // eventfd written by RequestClose
  Thread closer_;                   // mp-closer: closes when asked from a signal handler
  Mutex close_mutex_;
  bool closed_ MOONPOOL_GUARDED_BY(close_mutex_) = false;
};

}  // namespace moonpool::engine
