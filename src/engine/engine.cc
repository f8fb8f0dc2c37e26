#include "engine/engine.h"

#include <utility>

#include "base/str.h"
#include "engine/control_rpc.h"
#include "engine/core.h"

namespace moonpool::engine {
namespace {

Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return Status(Code::kInvalidArgument, Str(field, " is ", value, "; allowed ", low, " .. ", high));
}

Status CheckOptions(const Options& options) {
  MOONPOOL_RETURN_IF_ERROR(
      CheckRange("workers", static_cast<uint64_t>(options.workers), 1, kWorkersMax));
  MOONPOOL_RETURN_IF_ERROR(
      CheckRange("serving_threads", static_cast<uint64_t>(options.serving_threads), 1, 64));
  MOONPOOL_RETURN_IF_ERROR(CheckRange("batches_max", options.batches_max, 1, 1u << 24));
  MOONPOOL_RETURN_IF_ERROR(CheckRange("notifications_max", options.notifications_max, 1, 1u << 24));
  if (options.timeout.count() <= 0)
    return Status(Code::kInvalidArgument, "timeout must be above 0");
  if (options.spin_max.count() < 0)
    return Status(Code::kInvalidArgument, "spin_max must not be negative");
  if (options.retry_window.count() < 0)
    return Status(Code::kInvalidArgument, "retry_window must not be negative");
  if (options.lease < std::chrono::milliseconds(100))
    return Status(Code::kInvalidArgument, "lease must be 100 ms at least");
  return CheckRange("the name's length", options.name.size(), 0, kNameBytesMax);
}

}  // namespace

Engine::Engine(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Create(const Options& given, World world) {
  MOONPOOL_RETURN_IF_ERROR(CheckOptions(given));
  Options options = given;
  // ":7000" is every address of the machine; the parser wants a host.
  if (options.listen.starts_with(':')) options.listen.insert(0, "0.0.0.0");
  if (!world.control) {
    MOONPOOL_ASSIGN_OR_RETURN(world.control,
                              RpcControl::Create(options.listen, world.clock, world.log));
  }
  auto core = std::make_unique<Core>(options, std::move(world));
  MOONPOOL_RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<Engine>(new Engine(std::move(core)));
}

const std::string& Engine::name() const { return core_->name(); }
const std::string& Engine::address() const { return core_->address(); }
Info Engine::Describe() const { return core_->Describe(); }

Result<RegionInfo> Engine::Register(void* address, uint64_t size, Rights rights) {
  return core_->Register(address, size, rights);
}
Status Engine::Deregister(void* address, Duration timeout) {
  return core_->Deregister(address, timeout);
}
Result<RegionInfo> Engine::Allocate(uint64_t size, Rights rights, bool huge_pages) {
  return core_->Allocate(size, rights, huge_pages);
}
Status Engine::Free(void* address, Duration timeout) { return core_->Free(address, timeout); }

Result<SegmentHandle> Engine::Open(const std::string& name, Duration timeout) {
  return core_->Open(name, timeout);
}
Status Engine::CloseSegment(SegmentHandle segment) { return core_->CloseSegment(segment); }
Result<SegmentInfo> Engine::Segment(SegmentHandle segment, bool refresh, Duration timeout) {
  return core_->DescribeSegment(segment, refresh, timeout);
}

Result<BatchHandle> Engine::Submit(const BatchRequest& request) { return core_->Submit(request); }
Status Engine::Wait(BatchHandle batch, Duration timeout) { return core_->Wait(batch, timeout); }
Result<BatchStatus> Engine::Poll(BatchHandle batch) { return core_->Poll(batch); }
Status Engine::Cancel(BatchHandle batch) { return core_->Cancel(batch); }
Status Engine::Release(BatchHandle batch) { return core_->Release(batch); }

std::vector<BatchHandle> Engine::NextCompleted(size_t max, Duration timeout) {
  return core_->inbox().TakeCompleted(max, After(core_->clock().Now(), timeout));
}
int Engine::event_fd() const { return core_->inbox().event_fd(); }

Status Engine::Notify(SegmentHandle segment, const std::string& payload, Duration timeout) {
  return core_->Notify(segment, payload, timeout);
}
std::vector<Notification> Engine::TakeNotifications(size_t max, Duration timeout) {
  return core_->inbox().TakeNotifications(max, After(core_->clock().Now(), timeout));
}

bool Engine::Drive() { return core_->Drive(); }
void Engine::Close() { core_->Close(); }
void Engine::RequestClose() { core_->RequestClose(); }

}  // namespace moonpool::engine
