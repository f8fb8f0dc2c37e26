#include "engine/worker.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/str.h"

namespace moonpool::engine {
namespace {

// Bulk ahead of a latency slice in one lane: at 5 GB/s about 2 ms. Enough to keep a lane's pipeline full.
constexpr uint64_t kBulkBytesInFlight = 8 << 20;
constexpr size_t kPostAtOnce = 16;
constexpr size_t kPollAtOnce = 64;
constexpr Duration kExpiryTick = std::chrono::milliseconds(5);
// How long the worker's thread leaves the gate to a caller that is about to wait.
constexpr Duration kGrace = std::chrono::microseconds(50);
// So long after it was last asked to drive the thread looks again every kGrace by itself: who submits and waits in a loop
// does the work in its own thread, and would pay for a wake-up each time.
constexpr Duration kLinger = std::chrono::microseconds(200);
constexpr int kSpinCreditMax = 8;
constexpr int kSpinCreditMin = -32;  // then one more try

// A busy wait must not keep the processor from the very thread whose answer it waits for.
void Pause() { ::sched_yield(); }

}  // namespace

struct Worker::PathQueue {
  Path* path = nullptr;
  std::deque<SliceRef> latency;
  std::deque<SliceRef> bulk;
  uint64_t bulk_in_flight = 0;  // bytes
  uint32_t in_flight = 0;       // slices
  bool active = false;
  bool empty() const { return latency.empty() && bulk.empty(); }
};

struct Worker::InFlight {
  SliceRef slice;
  PathQueue* queue = nullptr;  // null: free
  uint32_t generation = 0;
  bool bulk = false;
  uint64_t bytes = 0;
};

Worker::Worker(WorkerOptions options)
    : index_(options.index),
      clock_(options.clock),
      hooks_(options.hooks),
      spin_max_(options.spin_max),
      lanes_(std::move(options.lanes)) {}

Worker::~Worker() { Stop(); }

Result<std::unique_ptr<Worker>> Worker::Create(WorkerOptions options) {
  std::unique_ptr<Worker> worker(new Worker(std::move(options)));
  MOONPOOL_RETURN_IF_ERROR(worker->OpenWaiting());
  return worker;
}

Status Worker::OpenWaiting() {
  wake_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_fd_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_fd_.valid() || !epoll_fd_.valid()) {
    return Status(Code::kExhausted, Str("worker: no descriptors: ", std::strerror(errno)));
  }
  MutexLock lock(gate_);
  std::vector<int> fds{wake_fd_.get()};
  for (const auto& lane : lanes_) {
    if (lane->event_fd() >= 0) fds.push_back(lane->event_fd());
  }
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return Status(Code::kInternal, Str("worker: epoll_ctl: ", std::strerror(errno)));
    }
  }
  return Status::Ok();
}

void Worker::Start() {
  threaded_ = true;
  thread_ = Thread(Str("mp-worker-", index_), [this](const std::stop_token& stop) { Run(stop); });
}

void Worker::Stop() {
  stopped_.store(true);
  if (thread_.joinable()) thread_.RequestStop();
  {
    MutexLock lock(park_mutex_);
    poke_ = true;
  }
  park_.NotifyAll();
  Wake();
  thread_.Join();
  MutexLock lock(gate_);  // whoever drives leaves
}

void Worker::Push(Path* path, std::vector<SliceRef> slices, Priority priority) {
  uint64_t bytes = 0;
  for (const SliceRef& ref : slices)
    bytes += ref.batch->groups[ref.group].plan.slices[ref.slice].bytes;
  queued_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  outstanding_.fetch_add(static_cast<uint32_t>(slices.size()));
  MutexLock lock(inbox_mutex_);
  inbox_.pushed.push_back({path, std::move(slices), priority});
  inbox_full_.store(true);
}

void Worker::Cancel(std::shared_ptr<Batch> batch) {
  {
    MutexLock lock(inbox_mutex_);
    inbox_.cancelled.push_back(std::move(batch));
    inbox_full_.store(true);
  }
  Wake();
  NotifyThread(true);
}

void Worker::Detach(std::shared_ptr<Incarnation> incarnation) {
  {
    MutexLock lock(inbox_mutex_);
    inbox_.detached.push_back(std::move(incarnation));
    inbox_full_.store(true);
  }
  Wake();
  NotifyThread(true);
}

void Worker::Wake() {
  if (!sleeping_.load()) return;
  const uint64_t one = 1;
  // A full counter already wakes.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof(one));
}

void Worker::Kick(Driver driver, bool post) {
  if (driver == Driver::kCaller) return Wake();
  kicks_.fetch_add(1, std::memory_order_relaxed);
  const bool at_once = driver == Driver::kThread;
  if (post && EnterGate()) {
    Pump(true);
    LeaveGate(at_once);
    return;
  }
  Wake();
  if (!driven_.load()) NotifyThread(at_once);  // else: whoever leaves the gate looks again
}

bool Worker::EnterGate() {
  if (!gate_.TryLock()) return false;
  if (stopped_.load()) {
    gate_.Unlock();
    return false;
  }
  driven_.store(true);
  return true;
}

void Worker::LeaveGate(bool at_once) {
  driven_.store(false);
  gate_.Unlock();
  if (outstanding_.load() > 0 || inbox_full_.load()) NotifyThread(at_once);
}

void Worker::NotifyThread(bool at_once) {
  const Parking parking = parking_.load();
  if (!threaded_ || parking == Parking::kAwake || (parking == Parking::kSoonAwake && !at_once))
    return;
  {
    MutexLock lock(park_mutex_);
    poke_ = true;
    at_once_ |= at_once;
  }
  park_.NotifyOne();
}

void Worker::Park(const std::stop_token& stop, bool lately) {
  MutexLock lock(park_mutex_);
  if (!lately) {
    parking_.store(Parking::kParked);
    while (!stop.stop_requested() && !poke_ &&
           ((outstanding_.load() == 0 && !inbox_full_.load()) || driven_.load())) {
      park_.Wait(park_mutex_);
    }
  }
  parking_.store(Parking::kSoonAwake);
  if (!stop.stop_requested() && !at_once_) park_.WaitFor(park_mutex_, kGrace);
  poke_ = at_once_ = false;
  parking_.store(Parking::kAwake);
}

void Worker::Run(const std::stop_token& stop) {
  uint64_t seen = 0;
  Time busy_at{};
  while (!stop.stop_requested()) {
    const Time now = clock_.Now();
    if (const uint64_t kicks = kicks_.load(std::memory_order_relaxed); kicks != seen) {
      seen = kicks;
      busy_at = now;
    }
    Park(stop, now - busy_at < kLinger);
    if ((outstanding_.load() == 0 && !inbox_full_.load()) || !EnterGate()) continue;
    DriveWhile(nullptr, kNever);
    driven_.store(false);
    gate_.Unlock();
  }
}

bool Worker::DriveFor(Batch& batch, Time deadline) {
  if (!EnterGate()) return false;
  DriveWhile(&batch, deadline);
  LeaveGate(true);
  return true;
}

bool Worker::DriveOnce() {
  if (!EnterGate()) return false;
  const bool progress = Pump(false);
  LeaveGate(true);
  return progress;
}

bool Worker::SpinFor(Duration idle) {
  if (spin_credit_ <= 0 || idle >= spin_max_) return false;
  Pause();
  return true;
}

void Worker::DriveWhile(Batch* batch, Time deadline) {
  Time progress_at = clock_.Now();
  bool slept = false;
  for (;;) {
    if (batch != nullptr &&
        (batch->done.load(std::memory_order_acquire) || batch->on_worker[index_].load() == 0))
      return;
    if (batch == nullptr && outstanding_.load() == 0 && !inbox_full_.load()) return;
    if (stopped_.load(std::memory_order_relaxed)) return;
    Time now;
    const bool progress = Pump(false, &now);
    if (progress) {
      if (!slept && now - progress_at > std::chrono::microseconds(2)) spin_credit_ = kSpinCreditMax;
      progress_at = now;
      slept = false;
      continue;
    }
    if (now >= deadline) return;
    if (SpinFor(now - progress_at)) continue;
    if (--spin_credit_ < kSpinCreditMin) spin_credit_ = 1;
    Sleep(deadline);
    slept = true;
  }
}

void Worker::Sleep(Time until) {
  const Time now = clock_.Now();
  for (const auto& lane : lanes_) until = std::min(until, lane->wake_by());
  if (!active_.empty()) until = std::min(until, now + kExpiryTick);
  if (until <= now) return;
  sleeping_.store(true);
  if (!inbox_full_.load()) {
    std::array<epoll_event, 8> events;
    const int n =
        epoll_wait(epoll_fd_.get(), events.data(), events.size(), MillisUntil(now, until, 1000));
    for (int i = 0; i < n; ++i) {
      uint64_t count = 0;
      if (events[i].data.fd == wake_fd_.get() && ::read(wake_fd_.get(), &count, sizeof(count)) < 0)
        break;
    }
  }
  sleeping_.store(false);
}

bool Worker::Pump(bool post_only, Time* at) {
  bool progress = TakeInbox();
  if (!active_.empty()) {
    const Time now = clock_.Now();
    if (now - last_expiry_ >= kExpiryTick) ExpireQueued(now);
    progress |= PostQueued();
  }
  if (post_only) return progress;
  const Time now = clock_.Now();
  for (const auto& lane : lanes_) progress |= PollLane(*lane, now);
  if (at != nullptr) *at = progress ? clock_.Now() : now;
  return progress;
}

bool Worker::TakeInbox() {
  if (!inbox_full_.load(std::memory_order_acquire)) return false;
  Inbox taken;
  {
    MutexLock lock(inbox_mutex_);
    std::swap(taken, inbox_);
    inbox_full_.store(false);
  }
  for (Inbox::Pushed& pushed : taken.pushed) {
    PathQueue& queue = QueueOf(pushed.path);
    // A batch that failed between its dispatch and now has had its Cancel taken already.
    std::erase_if(pushed.slices, [&](const SliceRef& ref) {
      if (!ref.batch->failing.load()) return false;
      Return(ref, pushed.path, {0, Code::kCancelled, transport::Phase::kNone});
      return true;
    });
    if (pushed.slices.empty()) continue;
    std::deque<SliceRef>& to = pushed.priority == Priority::kLatency ? queue.latency : queue.bulk;
    to.insert(to.end(), pushed.slices.begin(), pushed.slices.end());
    if (!queue.active) {
      queue.active = true;
      active_.push_back(&queue);
    }
  }
  for (const auto& batch : taken.cancelled) Doom(*batch);
  for (const auto& incarnation : taken.detached) Leave(*incarnation);
  return true;
}

Worker::PathQueue& Worker::QueueOf(Path* path) {
  std::unique_ptr<PathQueue>& queue = queues_[path];
  if (!queue) {
    queue = std::make_unique<PathQueue>();
    queue->path = path;
  }
  return *queue;
}

template <typename Pick>
void Worker::DropQueued(PathQueue& queue, Pick pick, const transport::Completion& completion) {
  std::vector<SliceRef> dropped;
  for (std::deque<SliceRef>* from : {&queue.latency, &queue.bulk}) {
    const auto keep = std::stable_partition(from->begin(), from->end(),
                                            [&](const SliceRef& ref) { return !pick(ref); });
    dropped.insert(dropped.end(), keep, from->end());
    from->erase(keep, from->end());
  }
  for (const SliceRef& ref : dropped) Return(ref, queue.path, completion);
}

void Worker::ExpireQueued(Time now) {
  last_expiry_ = now;
  for (size_t i = 0; i < active_.size(); ++i) {
    const auto phase =
        active_[i]->in_flight > 0 ? transport::Phase::kData : transport::Phase::kConnect;
    DropQueued(*active_[i], [now](const SliceRef& ref) { return ref.batch->deadline <= now; },
               {0, Code::kTimedOut, phase});
  }
}

void Worker::Doom(const Batch& batch) {
  for (size_t i = 0; i < active_.size(); ++i) {
    DropQueued(*active_[i], [&](const SliceRef& ref) { return ref.batch == &batch; },
               {0, Code::kCancelled, transport::Phase::kNone});
  }
  for (size_t i = 0; i < flights_.size(); ++i) {
    const InFlight& flight = flights_[i];
    if (flight.queue == nullptr || flight.slice.batch != &batch) continue;
    lanes_[flight.queue->path->transport]->Cancel((static_cast<uint64_t>(flight.generation) << 32) |
                                                  i);
  }
}

void Worker::Leave(Incarnation& incarnation) {
  std::vector<Path*> paths;
  {
    MutexLock lock(incarnation.mutex);
    for (const PathSlot& slot : incarnation.paths) {
      if (slot.path) paths.push_back(slot.path.get());
    }
  }
  for (Path* path : paths) {
    lanes_[path->transport]->Detach(*path->peer);
    const auto found = queues_.find(path);
    if (found == queues_.end()) continue;
    PathQueue& queue = *found->second;
    DropQueued(queue, [](const SliceRef&) { return true; },
               {0, Code::kUnavailable, transport::Phase::kConnect});
    std::erase(active_, &queue);
    queue.active = false;
    if (queue.in_flight > 0) leaving_.push_back(std::move(found->second));
    queues_.erase(found);
  }
}

bool Worker::PostQueued() {
  bool progress = false;
  for (size_t i = 0; i < active_.size(); ++i) progress |= PostFrom(*active_[i], false);
  for (size_t i = 0; i < active_.size(); ++i) progress |= PostFrom(*active_[i], true);
  std::erase_if(active_, [](PathQueue* queue) {
    if (!queue->empty()) return false;
    queue->active = false;
    return true;
  });
  return progress;
}

uint32_t Worker::TakeFlight() {
  if (free_flights_.empty()) {
    flights_.emplace_back();
    return static_cast<uint32_t>(flights_.size() - 1);
  }
  const uint32_t index = free_flights_.back();
  free_flights_.pop_back();
  return index;
}

bool Worker::PostFrom(PathQueue& queue, bool bulk) {
  std::deque<SliceRef>& from = bulk ? queue.bulk : queue.latency;
  bool progress = false;
  while (!from.empty()) {
    std::array<transport::Slice, kPostAtOnce> slices;
    std::array<uint32_t, kPostAtOnce> flights;
    size_t count = 0;
    uint64_t bytes = bulk ? queue.bulk_in_flight : 0;
    while (count < kPostAtOnce && count < from.size() && (!bulk || bytes < kBulkBytesInFlight)) {
      const SliceRef& ref = from[count];
      const GroupState& group = ref.batch->groups[ref.group];
      const PlannedSlice& planned = group.plan.slices[ref.slice];
      const uint32_t index = TakeFlight();
      InFlight& flight = flights_[index];
      flight = {ref, &queue, flight.generation + 1, bulk, planned.bytes};
      flights[count] = index;
      slices[count++] = {.cookie = (static_cast<uint64_t>(flight.generation) << 32) | index,
                         .op = group.op,
                         .deadline = ref.batch->deadline,
                         .pieces = {group.plan.pieces.data() + planned.first_piece, planned.pieces},
                         .keys = {group.plan.keys.data() + planned.first_key, planned.keys},
                         .bytes = planned.bytes};
      bytes += planned.bytes;
    }
    if (count == 0) return progress;
    const size_t accepted =
        lanes_[queue.path->transport]->Post(*queue.path->peer, {slices.data(), count});
    for (size_t i = 0; i < accepted; ++i) {
      if (bulk) queue.bulk_in_flight += slices[i].bytes;
      ++queue.in_flight;
    }
    for (size_t i = accepted; i < count; ++i) {
      flights_[flights[i]].queue = nullptr;
      free_flights_.push_back(flights[i]);
    }
    from.erase(from.begin(), from.begin() + static_cast<ptrdiff_t>(accepted));
    progress |= accepted > 0;
    if (accepted < count) return progress;
  }
  return progress;
}

bool Worker::PollLane(transport::Lane& lane, Time now) {
  std::array<transport::Completion, kPollAtOnce> completions;
  const size_t count = lane.Poll(completions, now);
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint32_t>(completions[i].cookie);
    MOONPOOL_CHECK(index < flights_.size());
    InFlight& flight = flights_[index];
    MOONPOOL_CHECK(flight.queue != nullptr);
    MOONPOOL_CHECK(flight.generation == completions[i].cookie >> 32);
    PathQueue& queue = *flight.queue;
    const SliceRef ref = flight.slice;
    Path* path = queue.path;
    if (flight.bulk) queue.bulk_in_flight -= flight.bytes;
    flight.queue = nullptr;
    free_flights_.push_back(index);
    if (--queue.in_flight == 0 && !leaving_.empty()) {
      std::erase_if(leaving_, [&](const auto& gone) { return gone.get() == &queue; });
    }
    Return(ref, path, completions[i]);
  }
  return count > 0;
}

void Worker::Return(const SliceRef& ref, Path* path, const transport::Completion& completion) {
  Batch& batch = *ref.batch;
  queued_bytes_.fetch_sub(batch.groups[ref.group].plan.slices[ref.slice].bytes,
                          std::memory_order_relaxed);
  batch.on_worker[index_].fetch_sub(1);
  outstanding_.fetch_sub(1);
  hooks_.SliceDone(ref, path, completion);  // the batch may be gone after this
}

}  // namespace moonpool::engine
