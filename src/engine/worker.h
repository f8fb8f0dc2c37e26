#pragma once

// Worker: one posting context of the engine: a lane of each transport, the queues in front of them, and the slices in
// flight. Whoever holds the worker's gate drives it: the worker's own thread, a caller inside Engine::Wait, or nobody
// when nothing is under way. So a caller that waits does the work itself, with no hand-over between threads.
//
// Slices of one path wait in that path's queue, so a peer that does not drain delays nobody else; slices of latency
// priority go before bulk ones, and at most kBulkBytesInFlight of bulk are in a lane ahead of them.
//
// Not responsible for: planning, retrying, batches' outcomes (Hooks).
//
// Threads: Push, Cancel, Detach (also from Hooks), Kick and Wake are thread-safe; what says Requires: gate is for the gate's holder.
// Hooks are called by the gate's holder with no lock held but the gate.

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "engine/batch.h"
#include "engine/segment.h"
#include "transport/transport.h"

namespace moonpool::engine {

struct SliceRef {
  Batch* batch = nullptr;  // alive: it counts the slice as outstanding
  uint32_t group = 0;
  uint32_t slice = 0;
};

// Who goes on driving after a Kick.
enum class Driver {
  kCaller,  // the caller calls DriveFor next
  kThread,  // the worker's thread, at once
  kThreadSoon,  // the worker's thread, unless a caller comes first: it leaves the gate to one for kGrace
};

class WorkerHooks {
 public:
  virtual ~WorkerHooks() = default;
  // The slice is back: nothing of it touches memory any more. `path` is where it went, or null if it was never posted.
  virtual void SliceDone(const SliceRef& slice, Path* path,
                         const transport::Completion& completion) = 0;
};

struct WorkerOptions {
  int index = 0;
  Clock& clock;                                         // outlives the worker
  WorkerHooks& hooks;                                   // outlives the worker
  std::vector<std::unique_ptr<transport::Lane>> lanes;  // by transport index
  Duration spin_max{0};
};

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> Create(WorkerOptions options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Start();  // the worker's own thread
  void Stop();   // joins it; nobody drives any more; idempotent

  // Hands slices of one group over, all for `path`; counted in the batch by the caller before.
  void Push(Path* path, std::vector<SliceRef> slices, Priority priority);
  // Drops the batch's queued slices and asks the lanes to cancel its others. Keeps the batch until that is done.
  void Cancel(std::shared_ptr<Batch> batch);
  // Detaches the lanes from the incarnation's peers; what is queued for it comes back as kUnavailable.
  void Detach(std::shared_ptr<Incarnation> incarnation);

  // Sees to it that `driver` goes on; with `post` what is queued is posted from this thread first, if nobody drives.
  void Kick(Driver driver, bool post);
  // Drives until the batch is done, has nothing on this worker, or `deadline`; false: somebody else drives already.
  bool DriveFor(Batch& batch, Time deadline);
  // One pass; true when something was done. For engines without threads.
  bool DriveOnce();
  // Makes a sleeping driver look again.
  void Wake();
  bool driven() const { return driven_.load(std::memory_order_relaxed); }
  uint32_t outstanding() const { return outstanding_.load(); }

  uint64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

 private:
  // What the worker's thread does: kSoonAwake looks again within kGrace whether it is told or not.
  enum class Parking : uint8_t { kAwake, kSoonAwake, kParked };
  struct PathQueue;
  struct InFlight;
  struct Inbox {
    struct Pushed {
      Path* path;
      std::vector<SliceRef> slices;
      Priority priority;
    };
    std::vector<Pushed> pushed;
    std::vector<std::shared_ptr<Batch>> cancelled;
    std::vector<std::shared_ptr<Incarnation>> detached;
    bool empty() const { return pushed.empty() && cancelled.empty() && detached.empty(); }
  };

  explicit Worker(WorkerOptions options);
  Status OpenWaiting();
  void Run(const std::stop_token& stop);
  void NotifyThread(bool at_once);
  void Park(const std::stop_token& stop, bool lately);

  // Requires: gate.
  // `at`, if given, becomes the time after it, or nearly when there was no progress.
  bool Pump(bool post_only, Time* at = nullptr) MOONPOOL_REQUIRES(gate_);
  bool TakeInbox() MOONPOOL_REQUIRES(gate_);
  PathQueue& QueueOf(Path* path) MOONPOOL_REQUIRES(gate_);
  // Takes out the queued slices that `pick` says, and returns each with its completion.
  template <typename Pick>
  void DropQueued(PathQueue& queue, Pick pick, const transport::Completion& completion)
      MOONPOOL_REQUIRES(gate_);
  void ExpireQueued(Time now) MOONPOOL_REQUIRES(gate_);
  void Doom(const Batch& batch) MOONPOOL_REQUIRES(gate_);
  void Leave(Incarnation& incarnation) MOONPOOL_REQUIRES(gate_);
  bool PostQueued() MOONPOOL_REQUIRES(gate_);
  bool PostFrom(PathQueue& queue, bool bulk) MOONPOOL_REQUIRES(gate_);
  bool PollLane(transport::Lane& lane, Time now) MOONPOOL_REQUIRES(gate_);
  void Return(const SliceRef& slice, Path* path, const transport::Completion& completion);
  void Sleep(Time until) MOONPOOL_REQUIRES(gate_);
  void DriveWhile(Batch* batch, Time deadline) MOONPOOL_REQUIRES(gate_);
  bool EnterGate() MOONPOOL_TRY_ACQUIRE(true, gate_);
  void LeaveGate(bool at_once) MOONPOOL_RELEASE(gate_);
  uint32_t TakeFlight() MOONPOOL_REQUIRES(gate_);
  bool SpinFor(Duration idle) MOONPOOL_REQUIRES(gate_);

  const int index_;
  Clock& clock_;
  WorkerHooks& hooks_;
  const Duration spin_max_;
  UniqueFd wake_fd_;   // eventfd
  UniqueFd epoll_fd_;  // the wake descriptor and every lane's

  // Slices pushed and not yet returned. Whoever leaves the gate with some outstanding wakes the thread.
  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint64_t> queued_bytes_{0};
  // The driver is about to sleep or sleeps; pairs with the inbox check.
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> inbox_full_{false};  // something is in the inbox
  std::atomic<bool> driven_{false};      // somebody holds the gate
  std::atomic<Parking> parking_{Parking::kAwake};
  std::atomic<uint64_t> kicks_{0};    // of the thread
  std::atomic<bool> stopped_{false};  // the gate stays shut
  bool threaded_ = false;             // constant after Start

  Mutex inbox_mutex_;
  Inbox inbox_ MOONPOOL_GUARDED_BY(inbox_mutex_);

  Mutex park_mutex_;
  CondVar park_;
  bool poke_ MOONPOOL_GUARDED_BY(park_mutex_) = false;
  bool at_once_ MOONPOOL_GUARDED_BY(park_mutex_) = false;  // no grace this time

  Mutex gate_;
  std::vector<std::unique_ptr<transport::Lane>> lanes_ MOONPOOL_GUARDED_BY(gate_);
  std::unordered_map<Path*, std::unique_ptr<PathQueue>> queues_ MOONPOOL_GUARDED_BY(gate_);
  std::vector<std::unique_ptr<PathQueue>> leaving_
      MOONPOOL_GUARDED_BY(gate_);                              // detached, slices still in flight
  std::vector<PathQueue*> active_ MOONPOOL_GUARDED_BY(gate_);  // something is queued
  std::vector<InFlight> flights_ MOONPOOL_GUARDED_BY(gate_);
  std::vector<uint32_t> free_flights_ MOONPOOL_GUARDED_BY(gate_);
  Time last_expiry_ MOONPOOL_GUARDED_BY(gate_){};
  int spin_credit_ MOONPOOL_GUARDED_BY(gate_) =
      8;  // spinning paid lately: spin; else sleep at once

  Thread thread_;
};

}  // namespace moonpool::engine
