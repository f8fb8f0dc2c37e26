#include <algorithm>

#include "base/str.h"
#include "engine/core.h"

namespace moonpool::engine {
namespace {

constexpr Duration kReachAttempt = std::chrono::seconds(2);  // one attempt of a repair
constexpr Duration kBackoffMin = std::chrono::milliseconds(20);
constexpr Duration kBackoffMax = std::chrono::milliseconds(400);
constexpr uint32_t kRoundsMax = 8;        // repairs of one group
constexpr uint32_t kPathFailuresMax = 2;  // in a row, before another transport is tried
constexpr Duration kPauseMin = std::chrono::milliseconds(500);
constexpr Duration kPauseMax = std::chrono::seconds(60);
constexpr size_t kSegmentsMax = 1 << 20;

bool Permanent(Code code) {
  return code == Code::kInvalidArgument || code == Code::kUnsupported || code == Code::kNotFound ||
         code == Code::kCancelled;
}

const TransportAddress* FindAddress(const Incarnation& incarnation, const std::string& name) {
  for (const TransportAddress& address : incarnation.transports) {
    if (address.name == name) return &address;
  }
  return nullptr;
}

Ranges RangesOf(const GroupState& group) { return {group.local, group.remote, group.lengths}; }

// A plan back to ranges, to plan anew.
void UnplanInto(GroupState& group) {
  group.local.clear();
  group.remote.clear();
  group.lengths.clear();
  for (const transport::Piece& piece : group.plan.pieces) {
    group.local.push_back(piece.local);
    group.remote.push_back(piece.remote);
    group.lengths.push_back(piece.size);
  }
}

}  // namespace

Result<Core::SegmentPtr> Core::GetSegment(SegmentHandle handle) const {
  const auto index = static_cast<uint32_t>(handle);
  MutexLock lock(segments_mutex_);
  if (index >= segments_.size() || segments_[index].first != handle >> 32 ||
      !segments_[index].second) {
    return Status(Code::kInvalidArgument, Str("segment ", handle, " is not open here"));
  }
  return segments_[index].second;
}

Result<SegmentHandle> Core::Open(const std::string& name, Duration timeout) {
  MOONPOOL_RETURN_IF_ERROR(CheckOpen());
  if (name.empty() || name.size() > kNameBytesMax) {
    return Status(Code::kInvalidArgument,
                  Str("segment name must have 1 .. ", kNameBytesMax, " bytes"));
  }
  SegmentPtr segment;
  {
    MutexLock lock(segments_mutex_);
    const auto found = segments_by_name_.find(name);
    if (found != segments_by_name_.end()) segment = found->second;
  }
  const bool known = segment != nullptr;
  if (!known) {
    segment = std::make_shared<SegmentState>();
    segment->name = name;
  }
  Failure failure;
  const Time deadline = After(clock_.Now(), TimeoutOr(timeout));
  const auto reached = Reach(segment, deadline, &failure);
  if (!reached.ok()) {
    return Status(failure.code, Str("open peer ", name, ", phase ",
                                    transport::PhaseName(failure.phase), ": ", failure.cause));
  }
  if (known) return segment->handle;
  MutexLock lock(segments_mutex_);
  const auto [place, added] = segments_by_name_.emplace(name, segment);
  if (!added) return place->second->handle;  // opened by another thread meanwhile
  uint32_t index = 0;
  while (index < segments_.size() && segments_[index].second) ++index;
  if (index >= kSegmentsMax) {
    segments_by_name_.erase(place);
    return Status(Code::kExhausted, Str(kSegmentsMax, " segments are open"));
  }
  if (index == segments_.size()) segments_.emplace_back(1, nullptr);
  segment->handle = (static_cast<uint64_t>(segments_[index].first) << 32) | index;
  segments_[index].second = segment;
  return segment->handle;
}

Status Core::CloseSegment(SegmentHandle handle) {
  MOONPOOL_ASSIGN_OR_RETURN(const SegmentPtr segment, GetSegment(handle));
  {
    MutexLock lock(segments_mutex_);
    auto& entry = segments_[static_cast<uint32_t>(handle)];
    if (entry.second != segment) return Status::Ok();
    entry.second = nullptr;
    if (++entry.first == 0) entry.first = 1;
    segments_by_name_.erase(segment->name);
  }
  for (const BatchPtr& batch : batches_.All()) {
    const bool uses =
        std::any_of(batch->groups.begin(), batch->groups.end(),
                    [&](const GroupState& group) { return group.segment == segment; });
    if (uses)
      FailBatch(*batch, {Code::kCancelled, transport::Phase::kNone, segment->name, "",
                         "the segment was closed"});
  }
  IncarnationPtr gone;
  {
    MutexLock lock(segment->mutex);
    segment->closed = true;
    gone = std::move(segment->incarnation);
    segment->incarnation = nullptr;
  }
  if (gone) Retire(gone);
  return Status::Ok();
}

Result<SegmentInfo> Core::DescribeSegment(SegmentHandle handle, bool refresh, Duration timeout) {
  MOONPOOL_ASSIGN_OR_RETURN(const SegmentPtr segment, GetSegment(handle));
  if (refresh) {
    Failure failure;
    const auto reached = Reach(segment, After(clock_.Now(), TimeoutOr(timeout)), &failure);
    if (!reached.ok()) return reached.status().WithContext(Str("refresh peer ", segment->name));
  }
  SegmentInfo info;
  info.name = segment->name;
  MutexLock lock(segment->mutex);
  info.address = segment->address;
  info.reason = segment->reason;
  if (segment->view) info.regions = segment->view->regions;
  if (segment->incarnation) {
    info.id = segment->incarnation->id;
    const Path* path = segment->incarnation->chosen.load();
    if (path != nullptr) info.transport = path->transport_name;
  }
  return info;
}

Result<std::string> Core::ResolveName(const std::string& name, Time deadline) {
  if (!world_.registry) return name;
  auto entry = world_.registry->Get(name, deadline);
  if (!entry.ok()) return entry.status();
  return entry->value;
}

Result<Core::Reached> Core::Reach(const SegmentPtr& segment, Time deadline, Failure* failure) {
  auto fail = [&](const Status& status, transport::Phase phase) {
    *failure = {status.code(), phase, segment->name, "", status.message()};
    return status;
  };
  const auto address = ResolveName(segment->name, deadline);
  if (!address.ok()) return fail(address.status(), transport::Phase::kResolve);
  transport::Phase phase = transport::Phase::kConnect;
  auto fetched = world_.control->Fetch(*address, deadline, &phase);
  if (!fetched.ok()) return fail(fetched.status(), phase);

  auto view = std::make_shared<RegionView>();
  view->version = fetched->descriptor.version;
  view->regions = std::move(fetched->descriptor.regions);
  IncarnationPtr incarnation;
  {
    MutexLock lock(segment->mutex);
    segment->address = *address;
    incarnation = segment->incarnation;
  }
  if (!incarnation || incarnation->retired.load() || !(incarnation->id == fetched->descriptor.id)) {
    incarnation = std::make_shared<Incarnation>();
    incarnation->id = fetched->descriptor.id;
    incarnation->name = segment->name;
    incarnation->host = fetched->host;
    incarnation->transports = fetched->descriptor.transports;
    MutexLock lock(incarnation->mutex);
    incarnation->paths.resize(transports_.size());
  }
  if (Status chosen = ChoosePath(segment, incarnation, deadline); !chosen.ok()) {
    return fail(chosen, transport::Phase::kHandshake);
  }
  return Publish(segment, std::move(incarnation), std::move(view));
}

Core::Reached Core::Publish(const SegmentPtr& segment, IncarnationPtr incarnation,
                            std::shared_ptr<const RegionView> view) {
  IncarnationPtr replaced;
  Reached reached;
  {
    MutexLock lock(segment->mutex);
    IncarnationPtr& current = segment->incarnation;
    if (segment->closed) {
      replaced = incarnation;  // nobody will use it: its lanes detach, its batches fail
    } else if (current && current != incarnation && current->id == incarnation->id &&
               !current->retired.load()) {
      replaced = std::move(incarnation);  // another thread was quicker
    } else if (current != incarnation) {
      replaced = std::move(current);
      current = std::move(incarnation);
    }
    if (!segment->closed) reached.incarnation = current;
    if (!segment->view || segment->view->version <= view->version || replaced)
      segment->view = std::move(view);
    reached.view = segment->view;
    if (!reached.incarnation) reached.incarnation = replaced;
  }
  if (replaced) Retire(replaced);
  return reached;
}

void Core::Retire(const IncarnationPtr& incarnation) {
  incarnation->retired.store(true);
  for (const auto& worker : workers_) worker->Detach(incarnation);
}

Result<Path*> Core::OpenPath(Incarnation& incarnation, size_t index, Time deadline) {
  const TransportEntry& entry = transports_[index];
  const TransportAddress* address = FindAddress(incarnation, entry.name);
  if (address == nullptr) return Status(Code::kUnsupported, "the peer does not offer it");
  MOONPOOL_ASSIGN_OR_RETURN(auto peer, entry.transport->OpenPeer({incarnation.name, incarnation.id,
                                                                  incarnation.host, address->blob},
                                                                 deadline));
  MutexLock lock(incarnation.mutex);
  PathSlot& slot = incarnation.paths[index];
  if (!slot.path) slot.path.reset(new Path{index, entry.name, std::move(peer)});
  return slot.path.get();
}

Status Core::ChoosePath(const SegmentPtr& segment, const IncarnationPtr& incarnation,
                        Time deadline) {
  std::string reasons;
  Path* paused = nullptr;
  Code code = Code::kUnsupported;
  for (size_t i = 0; i < transports_.size(); ++i) {
    const TransportEntry& entry = transports_[i];
    if (!entry.transport) continue;
    Path* path = nullptr;
    {
      MutexLock lock(incarnation->mutex);
      PathSlot& slot = incarnation->paths[i];
      path = slot.path.get();
      if (path != nullptr && path->failures.load() >= kPathFailuresMax &&
          clock_.Now() >= slot.paused_until) {
        if (slot.paused_until == Time{} || slot.pause.count() == 0) {
          slot.pause = kPauseMin;
          slot.paused_until = clock_.Now() + slot.pause;
        } else {
          slot.pause = std::min(slot.pause * 2, kPauseMax);
          slot.paused_until = clock_.Now() + slot.pause;
          path->failures.store(0);  // the pause is over: a probe
        }
      }
    }
    if (path != nullptr && path->unusable.load()) {
      reasons += Str(reasons.empty() ? "" : "; ", entry.name, ": the kernel refuses it");
      continue;
    }
    if (path != nullptr && path->failures.load() >= kPathFailuresMax) {
      reasons += Str(reasons.empty() ? "" : "; ", entry.name, ": paused after failures");
      if (paused == nullptr) paused = path;
      continue;
    }
    if (path == nullptr) {
      auto opened = OpenPath(*incarnation, i, deadline);
      if (!opened.ok()) {
        reasons += Str(reasons.empty() ? "" : "; ", entry.name, ": ", opened.status().message());
        if (opened.code() != Code::kUnsupported) code = opened.code();
        continue;
      }
      path = *opened;
    }
    const Path* before = incarnation->chosen.exchange(path);
    if (before != path) {
      log_.Info("path chosen",
                {{"peer", incarnation->name}, {"transport", entry.name}, {"others", reasons}});
      MutexLock lock(segment->mutex);
      segment->reason = Str(entry.name, ": chosen", reasons.empty() ? "" : "; ", reasons);
    }
    return Status::Ok();
  }
  if (paused != nullptr) {  // nothing better: try it again, once
    paused->failures.store(kPathFailuresMax - 1);
    incarnation->chosen.store(paused);
    return Status::Ok();
  }
  if (reasons.empty()) reasons = "no transport is usable here";
  return Status(code, Str("no transport reaches the peer (", reasons, ")"));
}

void Core::WaitForSegment(const SegmentPtr& segment, const BatchPtr& batch, size_t index) {
  GroupState& group = batch->groups[index];
  if (group.repair_since == kNever) group.repair_since = clock_.Now();
  bool start = false;
  bool closed = false;
  {
    MutexLock lock(segment->mutex);
    segment->waiting.push_back({batch, index});
    start = !segment->repairing && !segment->closed;
    if (start) segment->repairing = true;
    closed = segment->closed;
  }
  if (closed)
    FailBatch(*batch, {Code::kCancelled, transport::Phase::kNone, segment->name, "",
                       "the segment was closed"});
  tasks_.Post(
      TaskRunner::Kind::kQuick, [this, segment] { ExpireWaiting(segment); }, batch->deadline);
  if (start)
    tasks_.Post(TaskRunner::Kind::kMayBlock, [this, segment] { Repair(segment, kBackoffMin); });
  // FailBatch looks for waiting groups after it has marked the batch: one of the two sees it.
  if (batch->failing.load() && TakeWaiting(segment, *batch, index)) GroupDone(*batch);
}

bool Core::TakeWaiting(const SegmentPtr& segment, const Batch& batch, size_t index) {
  MutexLock lock(segment->mutex);
  const auto found = std::find_if(segment->waiting.begin(), segment->waiting.end(),
                                  [&](const WaitingGroup& waiting) {
                                    return waiting.batch.get() == &batch && waiting.group == index;
                                  });
  if (found == segment->waiting.end()) return false;
  segment->waiting.erase(found);
  return true;
}

void Core::ExpireWaiting(const SegmentPtr& segment) {
  const Time now = clock_.Now();
  std::vector<BatchPtr> expired;
  {
    MutexLock lock(segment->mutex);
    for (const WaitingGroup& waiting : segment->waiting) {
      if (waiting.batch->deadline <= now) expired.push_back(waiting.batch);
    }
  }
  for (const BatchPtr& batch : expired) {
    FailBatch(*batch, {Code::kTimedOut, transport::Phase::kConnect, segment->name, "",
                       "the deadline passed before the peer could be reached"});
  }
}

void Core::Repair(const SegmentPtr& segment, Duration backoff) {
  Failure failure;
  const auto reached = Reach(segment, After(clock_.Now(), kReachAttempt), &failure);
  if (!reached.ok()) {
    FailWaiting(segment, failure, backoff);
    return;
  }
  std::deque<WaitingGroup> waiting;
  {
    MutexLock lock(segment->mutex);
    std::swap(waiting, segment->waiting);
    segment->repairing = false;
  }
  for (const WaitingGroup& one : waiting) Resume(one, *reached);
}

void Core::FailWaiting(const SegmentPtr& segment, const Failure& failure, Duration backoff) {
  const Time now = clock_.Now();
  std::vector<BatchPtr> given_up;
  {
    MutexLock lock(segment->mutex);
    for (const WaitingGroup& waiting : segment->waiting) {
      const GroupState& group = waiting.batch->groups[waiting.group];
      if (Permanent(failure.code) || now - group.repair_since >= options_.retry_window)
        given_up.push_back(waiting.batch);
    }
  }
  for (const BatchPtr& batch : given_up) FailBatch(*batch, failure);
  bool again = false;
  {
    MutexLock lock(segment->mutex);
    again = !segment->waiting.empty() && !closing_.load();
    if (!again) segment->repairing = false;
  }
  if (!again) return;
  const Duration next = std::min(backoff * 2, kBackoffMax);
  tasks_.Post(
      TaskRunner::Kind::kMayBlock, [this, segment, next] { Repair(segment, next); },
      After(now, backoff));
}

void Core::Resume(const WaitingGroup& waiting, const Reached& reached) {
  Batch& batch = *waiting.batch;
  GroupState& group = batch.groups[waiting.group];
  if (batch.failing.load(std::memory_order_acquire)) return GroupDone(batch);
  const uint64_t done = batch.bytes_done.load();
  if (done > group.done_at_repair) group.rounds = 0;  // it gets on: others' trouble does not add up
  group.done_at_repair = done;
  std::string last;
  {
    MutexLock lock(batch.mutex);
    last = group.last_failure.message();
  }
  if (++group.rounds > kRoundsMax) {
    FailBatch(batch, {Code::kUnavailable, transport::Phase::kData, "", "",
                      Str("given up after ", kRoundsMax, " repairs; ", last)});
    return GroupDone(batch);
  }
  if (!group.incarnation) return Replan(waiting, reached);
  if (group.incarnation == reached.incarnation) return Resend(waiting, reached);
  if (!group.touched.load()) {
    UnplanInto(group);
    return Replan(waiting, reached);
  }
  FailBatch(batch, {Code::kStale, transport::Phase::kData, group.segment->name, "",
                    Str("the peer restarted in mid-transfer; ", last)});
  GroupDone(batch);
}

void Core::Replan(const WaitingGroup& waiting, const Reached& reached) {
  Batch& batch = *waiting.batch;
  GroupState& group = batch.groups[waiting.group];
  Path* path = reached.incarnation->chosen.load();
  auto plan = MakePlan(RangesOf(group), group.op, *reached.view, LimitsOf(*path));
  if (!plan.ok()) {
    FailBatch(batch, {Code::kInvalidArgument, transport::Phase::kNone, group.segment->name, "",
                      plan.status().message()});
    return GroupDone(batch);
  }
  group.plan = std::move(plan).value();
  group.incarnation = reached.incarnation;
  {
    MutexLock lock(batch.mutex);
    group.failed.clear();
  }
  std::vector<uint32_t> all(group.plan.slices.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  Dispatch(batch, waiting.group, all, false);
}

void Core::Resend(const WaitingGroup& waiting, const Reached& reached) {
  Batch& batch = *waiting.batch;
  GroupState& group = batch.groups[waiting.group];
  std::vector<uint32_t> failed;
  {
    MutexLock lock(batch.mutex);
    std::swap(failed, group.failed);
  }
  for (const uint32_t slice : failed) {
    const Status refreshed =
        RefreshKeys(group.plan, group.plan.slices[slice], group.op, *reached.view);
    if (!refreshed.ok()) {
      FailBatch(batch, {Code::kInvalidArgument, transport::Phase::kData, group.segment->name, "",
                        refreshed.message()});
      return GroupDone(batch);
    }
  }
  batch.retries.fetch_add(static_cast<uint32_t>(failed.size()));
  retries_.fetch_add(failed.size());
  group.repair_since = kNever;
  if (group.rounds < 2) return Dispatch(batch, waiting.group, failed, false);
  const Duration pause =
      std::min<Duration>(std::chrono::milliseconds(5) * (1 << group.rounds), kBackoffMax);
  tasks_.Post(
      TaskRunner::Kind::kQuick,
      [this, held = waiting.batch, index = waiting.group, failed] {
        if (held->failing.load()) return GroupDone(*held);
        Dispatch(*held, index, failed, false);
      },
      std::min(After(clock_.Now(), pause), batch.deadline));
}

}  // namespace moonpool::engine
