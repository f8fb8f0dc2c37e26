#include <algorithm>
#include <functional>
#include <thread>

#include "base/str.h"
#include "engine/core.h"

namespace moonpool::engine {
namespace {

// kUnsupported: this path cannot carry it after all, another may. kCancelled: by a lane that detached; a cancelled batch is
// failing and does not come here.
bool MayRetry(Code code) {
  return code == Code::kUnavailable || code == Code::kStale || code == Code::kCorrupt ||
         code == Code::kAgain || code == Code::kUnsupported || code == Code::kCancelled;
}

std::string CauseOf(Path* path, const transport::Completion& completion) {
  if (completion.code == Code::kTimedOut) return "the deadline passed";
  if (path != nullptr) {
    const Status last = path->peer->last_error();
    if (!last.ok() && last.code() == completion.code) return last.message();
  }
  switch (completion.code) {
    case Code::kInvalidArgument:
      return "the peer or the kernel refused the range (outside a region, not allowed, or "
             "unmapped)";
    case Code::kStale:
      return "the peer does not know this registration any more";
    case Code::kCorrupt:
      return "the checksum of the data is wrong";
    case Code::kUnavailable:
      return "the connection was lost";
    default:
      return std::string(CodeName(completion.code));
  }
}

constexpr size_t kNotifyBackoffMaxMs = 200;

// For less than this a second worker is not woken: by the time its thread runs, the first is nearly done.
constexpr uint64_t kWorkerBytesMin = 1 << 20;

// What Submit posts itself of latency priority when nobody said that a wait follows. To post is to copy, and to wake
// the peer: the caller of an asynchronous batch should not pay for that.
constexpr uint64_t kPostBytesMax = 64 << 10;
constexpr uint64_t kPostPiecesMax = 64;

}  // namespace

Status Core::CheckRequest(const BatchRequest& request) const {
  uint64_t descriptors = 0;
  for (size_t i = 0; i < request.groups.size(); ++i) {
    const Group& group = request.groups[i];
    MOONPOOL_RETURN_IF_ERROR(
        CheckRanges({group.local, group.remote, group.lengths}).WithContext(Str("group ", i)));
    descriptors += group.lengths.size();
    if (group.op != transport::Op::kRead && group.op != transport::Op::kWrite) {
      return Status(Code::kInvalidArgument, Str("group ", i, ": op must be read or write"));
    }
    if (group.lengths.empty())
      return Status(Code::kInvalidArgument, Str("group ", i, ": no descriptors"));
  }
  if (descriptors == 0 || descriptors > kDescriptorsMax) {
    return Status(Code::kInvalidArgument, Str("a batch has 1 .. ", kDescriptorsMax,
                                              " descriptors; this one has ", descriptors));
  }
  if (request.payload.size() > kNotificationBytesMax) {
    return Status(Code::kInvalidArgument, Str("payload has ", request.payload.size(),
                                              " bytes; allowed 0 .. ", kNotificationBytesMax));
  }
  if (request.timeout.count() < 0)
    return Status(Code::kInvalidArgument, "timeout must not be negative");
  return Status::Ok();
}

Status Core::PinLocal(Batch& batch, const BatchRequest& request) {
  std::vector<RegionInfo> known;  // pinned; the last one used is tried first
  size_t last = 0;
  for (size_t g = 0; g < request.groups.size(); ++g) {
    const Group& group = request.groups[g];
    for (size_t i = 0; i < group.local.size(); ++i) {
      const uint64_t address = group.local[i];
      const uint64_t size = group.lengths[i];
      batch.bytes_total += size;
      if (last < known.size() && RangeInside(address, size, known[last].address, known[last].size))
        continue;
      const auto hit = std::find_if(known.begin(), known.end(), [&](const RegionInfo& region) {
        return RangeInside(address, size, region.address, region.size);
      });
      if (hit != known.end() && known.size() <= 64) {
        last = static_cast<size_t>(hit - known.begin());
        continue;
      }
      const auto found = regions_.Find(address, size);
      if (!found || regions_.Pin(found->key) != Code::kOk) {
        return Status(Code::kInvalidArgument,
                      Str("group ", g, " descriptor ", i, ": local range 0x", std::hex, address,
                          std::dec, " + ", size, " bytes is not inside a region registered here"));
      }
      batch.pinned.push_back(found->key);
      if (known.size() < 64) {
        known.push_back(*found);
        last = known.size() - 1;
      } else {
        known[last = known.size() - 1] =
            *found;  // more than 64 regions: the last slot turns over, pins repeat
      }
    }
  }
  return Status::Ok();
}

void Core::Unpin(Batch& batch) {
  for (const RegionKey& key : batch.pinned) regions_.Unpin(key);
  batch.pinned.clear();
}

Result<BatchHandle> Core::Submit(const BatchRequest& request) {
  MOONPOOL_RETURN_IF_ERROR(CheckOpen());
  MOONPOOL_RETURN_IF_ERROR(CheckRequest(request));
  auto batch = std::make_shared<Batch>(request.groups.size());
  for (size_t i = 0; i < request.groups.size(); ++i) {
    auto segment = GetSegment(request.groups[i].segment);
    if (!segment.ok()) return segment.status().WithContext(Str("group ", i));
    batch->groups[i].segment = *segment;
    batch->groups[i].op = request.groups[i].op;
  }
  batch->deadline = After(clock_.Now(), TimeoutOr(request.timeout));
  batch->priority = request.priority;
  batch->notify = request.notify;
  batch->to_queue = request.to_queue;
  batch->payload = request.payload;
  batch->sequence = next_sequence_.fetch_add(request.groups.size());
  batch->groups_left.store(static_cast<uint32_t>(request.groups.size()));
  if (Status pinned = PinLocal(*batch, request); !pinned.ok()) {
    Unpin(*batch);
    return pinned;
  }
  const auto handle = batches_.Add(batch);
  if (!handle.ok()) {
    Unpin(*batch);
    return handle.status();
  }
  {
    MutexLock lock(batch->mutex);
    batch->keep_alive = batch;
  }
  for (size_t i = 0; i < request.groups.size(); ++i) {
    const Group& group = request.groups[i];
    StartGroup(batch, i, {group.local, group.remote, group.lengths}, request.wait_follows);
  }
  // Close marks first and looks for batches after: one of the two sees this batch. If all of Close went by meanwhile,
  // nobody is left to end it.
  if (closing_.load()) {
    FailBatch(*batch, {Code::kCancelled, transport::Phase::kNone, "", "", "the engine was closed"});
    MutexLock lock(close_mutex_);
    if (closed_) Finish(*batch);
  }
  return *handle;
}

PlanLimits Core::LimitsOf(const Path& path) const {
  const transport::Capabilities& can = transports_[path.transport].transport->capabilities();
  return {can.slice_bytes, can.slice_pieces_max, static_cast<uint32_t>(workers_.size())};
}

void Core::StartGroup(const BatchPtr& batch, size_t index, const Ranges& ranges,
                      bool wait_follows) {
  GroupState& group = batch->groups[index];
  IncarnationPtr incarnation;
  std::shared_ptr<const RegionView> view;
  {
    MutexLock lock(group.segment->mutex);
    incarnation = group.segment->incarnation;
    view = group.segment->view;
  }
  Path* path = incarnation && !incarnation->retired.load() ? incarnation->chosen.load() : nullptr;
  if (path != nullptr) {
    auto plan = MakePlan(ranges, group.op, *view, LimitsOf(*path));
    if (plan.ok()) {
      group.plan = std::move(plan).value();
      group.incarnation = std::move(incarnation);
      std::vector<uint32_t> all(group.plan.slices.size());
      for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
      Dispatch(*batch, index, all, wait_follows);
      return;
    }
  }
  group.local.assign(ranges.local.begin(), ranges.local.end());
  group.remote.assign(ranges.remote.begin(), ranges.remote.end());
  group.lengths.assign(ranges.lengths.begin(), ranges.lengths.end());
  WaitForSegment(group.segment, batch, index);
}

int Core::BaseWorker(bool wait_follows) const {
  const size_t count = workers_.size();
  if (count == 1) return 0;
  const size_t home = std::hash<std::thread::id>()(std::this_thread::get_id()) % count;
  if (!wait_follows || !workers_[home]->driven()) return static_cast<int>(home);
  for (size_t i = 0; i < count; ++i) {
    if (!workers_[i]->driven()) return static_cast<int>(i);
  }
  return static_cast<int>(home);
}

void Core::Dispatch(Batch& batch, size_t index, const std::vector<uint32_t>& slices,
                    bool wait_follows) {
  GroupState& group = batch.groups[index];
  Path* path = group.incarnation->chosen.load();
  const size_t count = workers_.size();
  const auto base = static_cast<size_t>(BaseWorker(wait_follows));
  batch.base_worker.store(static_cast<uint32_t>(base), std::memory_order_relaxed);
  uint64_t bytes = 0;
  uint64_t pieces = 0;
  for (const uint32_t slice : slices) {
    bytes += group.plan.slices[slice].bytes;
    pieces += group.plan.slices[slice].pieces;
  }
  const bool post = wait_follows || (batch.priority == Priority::kLatency &&
                                     bytes <= kPostBytesMax && pieces <= kPostPiecesMax);
  const size_t use = std::clamp<size_t>(bytes / kWorkerBytesMin, 1, count);
  std::vector<std::vector<SliceRef>> shares(count);
  for (size_t i = 0; i < slices.size(); ++i) {
    shares[(base + i % use) % count].push_back({&batch, static_cast<uint32_t>(index), slices[i]});
  }
  const Priority priority = batch.priority;
  // Whoever takes completions from the queue does not wait for the batch itself.
  const Driver asynchronous = batch.to_queue ? Driver::kThread : Driver::kThreadSoon;
  group.outstanding.store(static_cast<uint32_t>(slices.size()));
  for (size_t w = 0; w < count; ++w)
    batch.on_worker[w].fetch_add(static_cast<uint32_t>(shares[w].size()));
  std::vector<size_t> used;
  for (size_t w = 0; w < count; ++w) {
    if (shares[w].empty()) continue;
    used.push_back(w);
    workers_[w]->Push(path, std::move(shares[w]), priority);
  }
  // The batch may be done and gone from here on.
  if (!world_.threads) return;
  for (const size_t w : used) {
    if (w != base) workers_[w]->Kick(wait_follows ? Driver::kThread : asynchronous, post);
  }
  if (!slices.empty()) workers_[base]->Kick(wait_follows ? Driver::kCaller : asynchronous, post);
}

void Core::SliceDone(const SliceRef& ref, Path* path, const transport::Completion& completion) {
  Batch& batch = *ref.batch;
  GroupState& group = batch.groups[ref.group];
  if (completion.code == Code::kOk) {
    const uint64_t bytes = group.plan.slices[ref.slice].bytes;
    batch.bytes_done.fetch_add(bytes, std::memory_order_relaxed);
    (group.op == transport::Op::kRead ? bytes_read_ : bytes_written_)
        .fetch_add(bytes, std::memory_order_relaxed);
    if (!group.touched.load(std::memory_order_relaxed))
      group.touched.store(true, std::memory_order_relaxed);
    if (path->failures.load(std::memory_order_relaxed) != 0)
      path->failures.store(0, std::memory_order_relaxed);
    const uint32_t bit = 1u << path->transport;
    if ((batch.transports_used.load(std::memory_order_relaxed) & bit) == 0)
      batch.transports_used.fetch_or(bit);
  } else if (!batch.failing.load(std::memory_order_acquire)) {
    if (completion.code == Code::kUnavailable && path != nullptr) path->failures.fetch_add(1);
    if (completion.code == Code::kUnsupported && path != nullptr) path->unusable.store(true);
    const std::string transport = path ? path->transport_name : "";
    const Failure failure{completion.code, completion.phase, group.segment->name, transport,
                          CauseOf(path, completion)};
    if (MayRetry(completion.code)) {
      MutexLock lock(batch.mutex);
      group.failed.push_back(ref.slice);
      group.last_failure =
          Status(failure.code, Str("peer ", failure.peer, ", transport ", transport, ", phase ",
                                   transport::PhaseName(failure.phase), ": ", failure.cause));
    } else {
      FailBatch(batch, failure);
    }
  }
  if (group.outstanding.fetch_sub(1) == 1) SettleGroup(batch, ref.group);
}

void Core::SettleGroup(Batch& batch, size_t index) {
  GroupState& group = batch.groups[index];
  bool again = false;
  if (!batch.failing.load(std::memory_order_acquire)) {
    MutexLock lock(batch.mutex);
    again = !group.failed.empty();
  }
  if (again) {
    WaitForSegment(group.segment, Hold(batch), index);
  } else {
    GroupDone(batch);
  }
}

Core::BatchPtr Core::Hold(Batch& batch) {
  MutexLock lock(batch.mutex);
  return batch.keep_alive;
}

void Core::GroupDone(Batch& batch) {
  if (batch.groups_left.fetch_sub(1) != 1) return;
  if (batch.notify && !batch.failing.load(std::memory_order_acquire)) {
    PostNotify(Hold(batch), 0, Duration{0});
  } else {
    Finish(batch);
  }
}

void Core::FailBatch(Batch& batch, const Failure& failure) {
  const BatchPtr held = Hold(batch);
  if (!held || !RecordFailure(batch, failure)) return;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (batch.on_worker[w].load() > 0) workers_[w]->Cancel(held);
  }
  for (size_t i = 0; i < batch.groups.size(); ++i) {
    if (TakeWaiting(batch.groups[i].segment, batch, i)) GroupDone(batch);
  }
}

void Core::Finish(Batch& batch) {
  // Whoever takes `keep_alive` finishes the batch; there may be two when the engine closes.
  BatchPtr held;
  {
    MutexLock lock(batch.mutex);
    held = std::move(batch.keep_alive);
    batch.keep_alive = nullptr;
  }
  if (!held) return;
  Unpin(batch);
  const bool failed = batch.failing.load(std::memory_order_acquire);
  (failed ? batches_failed_ : batches_completed_).fetch_add(1);
  const BatchHandle handle = batch.handle;
  const bool to_queue = batch.to_queue;
  bool released = false;
  {
    MutexLock lock(batch.mutex);
    released = batch.released;
    batch.done.store(true, std::memory_order_release);
    batch.finished.NotifyAll();
  }
  if (released) {
    batches_.Remove(handle);
  } else if (to_queue) {
    inbox_.Completed(handle);
  }
}

Status Core::Wait(BatchHandle handle, Duration timeout) {
  const BatchPtr batch = batches_.Get(handle);
  if (!batch) return Status(Code::kNotFound, Str("batch ", handle, " is unknown or was released"));
  const Time deadline = After(clock_.Now(), std::max(timeout, Duration{0}));
  while (!batch->done.load(std::memory_order_acquire)) {
    const Time now = clock_.Now();
    if (now >= deadline) return Status(Code::kTimedOut, Str("batch ", handle, " is still running"));
    if (ended_.load()) return Status(Code::kCancelled, "the engine was closed");
    const Time until = std::min(deadline, now + std::chrono::milliseconds(100));
    bool drove = false;
    // First the worker that nobody else was asked to drive.
    const size_t base = batch->base_worker.load(std::memory_order_relaxed);
    for (size_t i = 0; world_.threads && i < workers_.size() && !drove; ++i) {
      const size_t w = (base + i) % workers_.size();
      drove = batch->on_worker[w].load() > 0 && workers_[w]->DriveFor(*batch, until);
    }
    if (drove) continue;
    MutexLock lock(batch->mutex);
    if (!batch->done.load(std::memory_order_acquire)) {
      batch->finished.WaitFor(batch->mutex,
                              std::min<Duration>(until - now, std::chrono::milliseconds(10)));
    }
  }
  MutexLock lock(batch->mutex);
  return batch->failure;
}

Result<BatchStatus> Core::Poll(BatchHandle handle) {
  const BatchPtr batch = batches_.Get(handle);
  if (!batch) return Status(Code::kNotFound, Str("batch ", handle, " is unknown or was released"));
  BatchStatus status;
  status.done = batch->done.load(std::memory_order_acquire);
  status.bytes_total = batch->bytes_total;
  status.bytes_done = batch->bytes_done.load(std::memory_order_relaxed);
  status.retries = batch->retries.load(std::memory_order_relaxed);
  const uint32_t used = batch->transports_used.load(std::memory_order_relaxed);
  for (size_t t = 0; t < transports_.size(); ++t) {
    if ((used >> t & 1) == 0) continue;
    if (!status.transport.empty()) status.transport += '+';
    status.transport += transports_[t].name;
  }
  MutexLock lock(batch->mutex);
  status.status = batch->failure;
  status.peer = batch->failed_peer;
  status.failed_transport = batch->failed_transport;
  status.phase = batch->failed_phase;
  return status;
}

Status Core::Cancel(BatchHandle handle) {
  const BatchPtr batch = batches_.Get(handle);
  if (!batch) return Status(Code::kNotFound, Str("batch ", handle, " is unknown or was released"));
  FailBatch(*batch, {Code::kCancelled, transport::Phase::kNone, "", "", "cancelled by the caller"});
  return Status::Ok();
}

Status Core::Release(BatchHandle handle) {
  const BatchPtr batch = batches_.Get(handle);
  if (!batch) return Status(Code::kNotFound, Str("batch ", handle, " is unknown or was released"));
  bool done = false;
  {
    MutexLock lock(batch->mutex);
    done = batch->done.load();
    batch->released = true;
  }
  if (done) {
    batches_.Remove(handle);
  } else {
    FailBatch(*batch,
              {Code::kCancelled, transport::Phase::kNone, "", "", "released while running"});
  }
  return Status::Ok();
}

void Core::PostNotify(const BatchPtr& batch, size_t group, Duration backoff) {
  tasks_.Post(
      TaskRunner::Kind::kMayBlock,
      [this, batch, group, backoff] { DeliverNotify(batch, group, backoff); },
      After(clock_.Now(), backoff));
}

// The next group from `index` on whose segment no earlier group has: a segment is notified once.
size_t Core::NextToNotify(const Batch& batch, size_t index) {
  for (; index < batch.groups.size(); ++index) {
    const SegmentState* segment = batch.groups[index].segment.get();
    const bool before =
        std::any_of(batch.groups.begin(), batch.groups.begin() + static_cast<ptrdiff_t>(index),
                    [&](const GroupState& group) { return group.segment.get() == segment; });
    if (!before) break;
  }
  return index;
}

void Core::DeliverNotify(const BatchPtr& batch, size_t index, Duration backoff) {
  const GroupState& group = batch->groups[index];
  std::string address;
  {
    MutexLock lock(group.segment->mutex);
    address = group.segment->address;
  }
  const Time now = clock_.Now();
  const Time attempt = std::min(batch->deadline, now + std::chrono::seconds(2));
  const Status sent = batch->failing.load()
                          ? Status::Ok()
                          : world_.control->Notify(address,
                                                   {id_, batch->sequence + index,
                                                    group.incarnation->id, name_, batch->payload},
                                                   attempt);
  const bool again = sent.code() == Code::kAgain || sent.code() == Code::kUnavailable ||
                     sent.code() == Code::kTimedOut;
  if (!sent.ok() && again && clock_.Now() < batch->deadline && !closing_.load()) {
    const Duration longer = std::clamp<Duration>(backoff * 2, std::chrono::milliseconds(1),
                                                 std::chrono::milliseconds(kNotifyBackoffMaxMs));
    PostNotify(batch, index,
               std::min<Duration>(longer,
                                  std::max<Duration>(batch->deadline - clock_.Now(), Duration{0})));
    return;
  }
  if (!sent.ok()) {
    const Code code = again && !closing_.load() ? Code::kTimedOut : sent.code();
    RecordFailure(*batch,
                  {code, transport::Phase::kCommit, group.segment->name, "",
                   Str("the data is there, its notification was not accepted: ", sent.message())});
    Finish(*batch);
  } else if (const size_t next = NextToNotify(*batch, index + 1);
             next < batch->groups.size() && !batch->failing.load()) {
    PostNotify(batch, next, Duration{0});
  } else {
    Finish(*batch);
  }
}

}  // namespace moonpool::engine
