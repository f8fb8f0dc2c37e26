#include "engine/core.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/fence.h"
#include "base/random.h"
#include "base/str.h"
#include "net/address.h"

namespace moonpool::engine {
namespace {

constexpr Duration kCloseDrain = std::chrono::milliseconds(800);
constexpr Duration kRegistryGoodbye = std::chrono::milliseconds(300);

transport::NodeId IdOr(transport::NodeId id) {
  if (id == transport::NodeId{}) return {SecureUint64(), SecureUint64()};
  return id;
}

// The first address of an interface that is up and not loopback: IPv4 before IPv6, no link-local ones.
std::string FirstHostAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "127.0.0.1";
  std::string best;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 ||
        (one->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    if (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6) continue;
    const socklen_t size =
        one->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const std::string text = net::Endpoint(one->ifa_addr, size).host();
    if (text.rfind("fe80", 0) == 0 || text.rfind("169.254.", 0) == 0) continue;
    if (best.empty() ||
        (one->ifa_addr->sa_family == AF_INET && best.find(':') != std::string::npos))
      best = text;
  }
  freeifaddrs(all);
  return best.empty() ? "127.0.0.1" : best;
}

}  // namespace

Core::Core(const Options& options, World world)
    : options_(options),
      world_(std::move(world)),
      clock_(world_.clock),
      log_(world_.log),
      id_(IdOr(world_.id)),
      regions_(clock_),
      inbox_(clock_, options.notifications_max, options.batches_max),
      tasks_(clock_, world_.threads),
      batches_(options.batches_max) {}

Core::~Core() {
  Close();
  closer_.RequestStop();
  const uint64_t one = 1;
  if (close_fd_.valid() && ::write(close_fd_.get(), &one, sizeof(one)) < 0)
    log_.Error("eventfd write failed");
  closer_.Join();
}

Status Core::MakeTransports() {
  const transport::Environment environment{clock_, log_, regions_, arenas_, id_};
  MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort listen, net::ParseHostPort(options_.listen, 0));
  transport::TransportOptions wanted;
  wanted.bind_host = net::MeansAllAddresses(listen.host) ? "" : listen.host;
  wanted.checksum = options_.checksum;
  wanted.serving_threads = options_.serving_threads;
  wanted.spin_max = options_.spin_max;
  for (const std::string& name : options_.transports) {
    const bool known =
        std::any_of(world_.transports.begin(), world_.transports.end(),
                    [&](const transport::Factory& factory) { return factory.name == name; });
    if (known) continue;
    std::string names;
    for (const transport::Factory& factory : world_.transports)
      names += Str(names.empty() ? "" : ", ", factory.name);
    return Status(Code::kInvalidArgument, Str("transports: '", name, "' is not one of: ", names));
  }
  for (const transport::Factory& factory : world_.transports) {
    const bool listed = std::find(options_.transports.begin(), options_.transports.end(),
                                  factory.name) != options_.transports.end();
    TransportEntry entry{factory.name, nullptr, "not in the list of transports"};
    if (options_.transports.empty() || listed) {
      auto made = factory.create(environment, wanted);
      if (made.ok()) {
        entry.transport = std::move(made).value();
        entry.reason.clear();
      } else if (listed) {
        return made.status().WithContext(Str("transport ", factory.name));
      } else {
        entry.reason = made.status().message();
      }
    }
    transports_.push_back(std::move(entry));
  }
  // Same host first, then by bandwidth.
  std::stable_sort(transports_.begin(), transports_.end(),
                   [](const TransportEntry& a, const TransportEntry& b) {
                     if (!a.transport || !b.transport) return a.transport && !b.transport;
                     const auto& left = a.transport->capabilities();
                     const auto& right = b.transport->capabilities();
                     if (left.same_host_only != right.same_host_only) return left.same_host_only;
                     return left.bandwidth_estimate > right.bandwidth_estimate;
                   });
  if (transports_.empty() || !transports_.front().transport)
    return Status(Code::kUnsupported, "no transport works on this machine");
  return Status::Ok();
}

Status Core::MakeWorkers() {
  for (int i = 0; i < options_.workers; ++i) {
    std::vector<std::unique_ptr<transport::Lane>> lanes;
    for (const TransportEntry& entry : transports_) {
      if (!entry.transport)
        break;  // the usable ones come first: lanes have the index of their transport
      MOONPOOL_ASSIGN_OR_RETURN(auto lane, entry.transport->OpenLane());
      lanes.push_back(std::move(lane));
    }
    MOONPOOL_ASSIGN_OR_RETURN(
        auto worker, Worker::Create({i, clock_, *this, std::move(lanes), options_.spin_max}));
    workers_.push_back(std::move(worker));
  }
  if (world_.threads) {
    for (const auto& worker : workers_) worker->Start();
  }
  return Status::Ok();
}

Status Core::Start() {
  MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort listen, net::ParseHostPort(options_.listen, 0));
  MOONPOOL_RETURN_IF_ERROR(MakeTransports());
  MOONPOOL_RETURN_IF_ERROR(MakeWorkers());
  std::string host = options_.advertise_host;
  if (host.empty()) host = net::MeansAllAddresses(listen.host) ? FirstHostAddress() : listen.host;
  address_ = net::HostPort{host, world_.control->port()}.ToString();
  name_ = options_.name.empty() ? address_ : options_.name;
  MOONPOOL_RETURN_IF_ERROR(
      world_.control->Start(*this).WithContext(Str("listen on ", options_.listen)));
  if (world_.registry) {
    const Time deadline = After(clock_.Now(), options_.timeout);
    const auto put = world_.registry->Put({name_, address_, options_.lease}, deadline);
    if (!put.ok()) return put.status().WithContext(Str("register segment ", name_));
    registered_ = *put;
  }
  if (world_.threads) {
    close_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!close_fd_.valid()) return Status(Code::kExhausted, "no descriptor for an eventfd");
    closer_ = Thread("mp-closer", [this](const std::stop_token&) { CloseOnRequest(); });
  }
  started_.store(true);
  log_.Info("engine started", {{"name", name_}, {"address", address_}});
  return Status::Ok();
}

Status Core::CheckOpen() const {
  if (closing_.load()) return Status(Code::kCancelled, "the engine is closed");
  return Status::Ok();
}

SegmentDescriptor Core::DescribeSelf() const {
  SegmentDescriptor self;
  self.name = name_;
  self.id = id_;
  self.regions = regions_.Snapshot(&self.version);
  for (const TransportEntry& entry : transports_) {
    if (entry.transport) self.transports.push_back({entry.name, entry.transport->Address()});
  }
  return self;
}

Status Core::Deliver(const NotifyMessage& message) {
  if (!(message.receiver_id == id_)) {
    return Status(Code::kStale, "the notification is for an earlier process at this address");
  }
  return inbox_.Deliver(message);
}

Result<RegionInfo> Core::Register(void* address, uint64_t size, Rights rights) {
  MOONPOOL_RETURN_IF_ERROR(CheckOpen());
  memory::RegisterOptions options{reinterpret_cast<uint64_t>(address), size, rights, kNoArena, 0};
  if (const auto place = arenas_.Find(options.address, size)) {
    options.arena = place->arena;
    options.arena_offset = place->offset;
  }
  return regions_.Register(options);
}

Status Core::Deregister(void* address, Duration timeout) {
  return regions_.Deregister(reinterpret_cast<uint64_t>(address),
                             After(clock_.Now(), TimeoutOr(timeout)));
}

Result<RegionInfo> Core::Allocate(uint64_t size, Rights rights, bool huge_pages) {
  MOONPOOL_RETURN_IF_ERROR(CheckOpen());
  MOONPOOL_ASSIGN_OR_RETURN(std::shared_ptr<memory::Arena> arena,
                            memory::Arena::Create({size, huge_pages, -1}));
  const uint32_t number = arenas_.Add(arena);
  auto region =
      regions_.Register({reinterpret_cast<uint64_t>(arena->data()), size, rights, number, 0});
  if (!region.ok()) {
    arenas_.Remove(number);
    return region.status();
  }
  MutexLock lock(memory_mutex_);
  allocations_[region->address] = {number, std::move(arena)};
  return *region;
}

Status Core::Free(void* address, Duration timeout) {
  const auto key = reinterpret_cast<uint64_t>(address);
  {
    MutexLock lock(memory_mutex_);
    if (allocations_.find(key) == allocations_.end()) {
      return Status(Code::kNotFound, Str("address 0x", std::hex, key, " was not allocated here"));
    }
  }
  Status gone = regions_.Deregister(key, After(clock_.Now(), TimeoutOr(timeout)));
  if (!gone.ok() && gone.code() != Code::kNotFound) return gone;
  std::shared_ptr<memory::Arena> arena;
  uint64_t version = 0;
  const std::vector<RegionInfo> regions = regions_.Snapshot(&version);
  MutexLock lock(memory_mutex_);
  const auto found = allocations_.find(key);
  if (found == allocations_.end()) return Status::Ok();
  for (const RegionInfo& region : regions) {
    if (region.arena != found->second.first) continue;
    return Status(Code::kAgain,
                  Str("the allocation at 0x", std::hex, key, " still holds the region at 0x",
                      region.address, "; deregister it first"));
  }
  arenas_.Remove(found->second.first);
  arena = std::move(found->second.second);
  allocations_.erase(found);
  return Status::Ok();
}

Status Core::Notify(SegmentHandle handle, const std::string& payload, Duration timeout) {
  MOONPOOL_RETURN_IF_ERROR(CheckOpen());
  if (payload.size() > kNotificationBytesMax) {
    return Status(Code::kInvalidArgument, Str("payload has ", payload.size(),
                                              " bytes; allowed 0 .. ", kNotificationBytesMax));
  }
  MOONPOOL_ASSIGN_OR_RETURN(const SegmentPtr segment, GetSegment(handle));
  const Time deadline = After(clock_.Now(), TimeoutOr(timeout));
  const uint64_t sequence = next_sequence_.fetch_add(1);
  Mutex mutex;
  CondVar pause;  // nobody notifies it: a bounded wait between attempts
  Failure failure;
  for (Duration backoff = std::chrono::milliseconds(1);;
       backoff = std::min<Duration>(backoff * 2, std::chrono::milliseconds(200))) {
    const auto reached = Reach(segment, deadline, &failure);
    Status sent = reached.status();
    if (reached.ok()) {
      std::string address;
      {
        MutexLock lock(segment->mutex);
        address = segment->address;
      }
      sent = world_.control->Notify(
          address, {id_, sequence, reached->incarnation->id, name_, payload}, deadline);
    }
    if (sent.code() != Code::kAgain && sent.code() != Code::kStale)
      return sent.ok() ? sent : sent.WithContext(Str("notify peer ", segment->name));
    if (clock_.Now() + backoff >= deadline || closing_.load()) {
      return Status(closing_.load() ? Code::kCancelled : Code::kTimedOut,
                    Str("notify peer ", segment->name, ": ", sent.message()));
    }
    MutexLock lock(mutex);
    pause.WaitFor(mutex, backoff);
  }
}

Info Core::Describe() const {
  Info info;
  info.name = name_;
  info.address = address_;
  info.id = id_;
  info.fence_exact = FenceIsExact();
  for (const TransportEntry& entry : transports_) {
    TransportInfo one{entry.name, entry.transport != nullptr, entry.reason, {}};
    if (entry.transport) one.metrics = entry.transport->Metrics();
    info.transports.push_back(std::move(one));
  }
  std::vector<SegmentPtr> segments;
  {
    MutexLock lock(segments_mutex_);
    for (const auto& entry : segments_) {
      if (entry.second) segments.push_back(entry.second);
    }
  }
  for (const SegmentPtr& segment : segments) {
    MutexLock lock(segment->mutex);
    SegmentInfo one{segment->name, segment->address, {}, "", segment->reason, {}};
    if (segment->incarnation) {
      one.id = segment->incarnation->id;
      const Path* path = segment->incarnation->chosen.load();
      if (path != nullptr) one.transport = path->transport_name;
    }
    info.segments.push_back(std::move(one));
  }
  info.regions = regions_.size();
  info.batches_live = batches_.size();
  info.batches_completed = batches_completed_.load();
  info.batches_failed = batches_failed_.load();
  info.bytes_read = bytes_read_.load();
  info.bytes_written = bytes_written_.load();
  info.retries = retries_.load();
  info.notifications_dropped = inbox_.refused();
  return info;
}

bool Core::Drive() {
  bool progress = tasks_.RunDue();
  for (const auto& worker : workers_) progress |= worker->DriveOnce();
  return progress;
}

void Core::RequestClose() {
  const uint64_t one = 1;
  if (close_fd_.valid() && ::write(close_fd_.get(), &one, sizeof(one)) < 0)
    return;  // full: asked already
}

void Core::CloseOnRequest() {
  pollfd wait{close_fd_.get(), POLLIN, 0};
  while (::poll(&wait, 1, -1) < 0) continue;  // EINTR only: all signals are blocked here
  Close();
}

void Core::DrainWorkers(Time until) {
  auto busy = [&] {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker->outstanding() > 0; });
  };
  Mutex mutex;
  CondVar pause;
  while (busy() && clock_.Now() < until) {
    if (!world_.threads) {
      if (!Drive()) return;
      continue;
    }
    for (const auto& worker : workers_) worker->Kick(Driver::kThread, true);
    MutexLock lock(mutex);
    pause.WaitFor(mutex, std::chrono::milliseconds(2));
  }
}

void Core::AbandonBatches() {
  for (const BatchPtr& batch : batches_.All()) {
    bool running = false;
    {
      MutexLock lock(batch->mutex);
      running = !batch->done.load();
    }
    if (!running) continue;
    RecordFailure(*batch,
                  {Code::kCancelled, transport::Phase::kNone, "", "", "the engine was closed"});
    Finish(*batch);
  }
}

void Core::Close() {
  closing_.store(true);
  MutexLock lock(close_mutex_);
  if (closed_) return;
  closed_ = true;
  const Time start = clock_.Now();
  for (const BatchPtr& batch : batches_.All()) {
    FailBatch(*batch, {Code::kCancelled, transport::Phase::kNone, "", "", "the engine was closed"});
  }
  inbox_.Close();
  if (world_.control) world_.control->Close();
  if (world_.registry && started_.load()) {
    const Status removed =
        world_.registry->Remove(name_, registered_, After(start, kRegistryGoodbye));
    if (!removed.ok())
      log_.Info("registry entry is left to its lease",
                {{"name", name_}, {"cause", removed.message()}});
  }
  DrainWorkers(start + kCloseDrain);
  if (world_.registry) world_.registry->Close();
  for (const TransportEntry& entry : transports_) {
    if (entry.transport) entry.transport->Close();
  }
  tasks_.Stop();
  for (const auto& worker : workers_) worker->Stop();
  // What is still in flight is a write that a silent peer may finish until the batch's deadline: its promise is kept by
  // the peer's own fence. The local side is over.
  AbandonBatches();
  {
    MutexLock segments(segments_mutex_);
    segments_by_name_.clear();
    segments_.clear();
  }
  ended_.store(true);
  log_.Info("engine closed", {{"name", name_}});
}

}  // namespace moonpool::engine
