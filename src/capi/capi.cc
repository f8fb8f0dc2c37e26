// The C API (include/moonpool/moonpool.h) over engine/engine.h. Nothing throws through it: what the
// C++ library throws (out of memory) becomes a code.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/str.h"
#include "capi/failure.h"
#include "engine/engine.h"
#include "moonpool/moonpool.h"
#include "registry/builtin.h"
#include "registry/registry.h"
#include "transport/builtin.h"

using moonpool::After;
using moonpool::BootClock;
using moonpool::Code;
using moonpool::Duration;
using moonpool::Result;
using moonpool::Rights;
using moonpool::Status;
using moonpool::Str;
using moonpool::capi::Blame;
using moonpool::capi::Fail;
using moonpool::capi::Guard;
namespace engine = moonpool::engine;

struct moonpool_engine {
  explicit moonpool_engine(moonpool::LogLevel level) : log(level) {}
  moonpool::SystemClock clock;
  moonpool::Logger log;
  std::unique_ptr<engine::Engine> engine;
};

namespace {

constexpr double kYear = 365.0 * 24 * 3600;

Status Invalid(std::string message) { return Status(Code::kInvalidArgument, std::move(message)); }

// Seconds as the engine takes them; 0 stays 0.
Result<Duration> Seconds(double seconds, const char* what) {
  if (std::isnan(seconds) || seconds < 0)
    return Invalid(Str(what, ": must be a number of seconds, 0 or more, not ", seconds));
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kYear)));
}

// A time to wait: negative means no limit.
Result<Duration> WaitSeconds(double seconds) {
  return Seconds(seconds < 0 ? kYear : seconds, "wait");
}

Result<Rights> RightsOf(int rights) {
  if (rights < 0 || rights > (MOONPOOL_READ | MOONPOOL_WRITE))
    return Invalid(Str("rights: must be a sum of MOONPOOL_READ and MOONPOOL_WRITE, not ", rights));
  return static_cast<Rights>(rights);
}

std::string Setting(const char* given, const char* variable, const char* otherwise) {
  if (given != nullptr && *given != '\0') return given;
  const char* const set = std::getenv(variable);
  return set != nullptr && *set != '\0' ? set : otherwise;
}

Result<double> NumberSetting(double given, const char* variable, double otherwise) {
  if (given != 0) return given;
  const std::string text = Setting(nullptr, variable, "");
  if (text.empty()) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0') return Invalid(Str(variable, ": must be a number, not \"", text, "\""));
  return value;
}

std::vector<std::string> Names(const std::string& text) {
  std::vector<std::string> names;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find(',', from), text.size());
    const std::string name = text.substr(from, to - from);
    const size_t first = name.find_first_not_of(' ');
    if (first != std::string::npos)
      names.push_back(name.substr(first, name.find_last_not_of(' ') - first + 1));
    from = to + 1;
  }
  return names;
}

Result<moonpool::LogLevel> LevelOf(const std::string& text) {
  const char* const levels[] = {"debug", "info", "warning", "error", "off"};
  for (int i = 0; i < 5; ++i)
    if (text == levels[i]) return static_cast<moonpool::LogLevel>(i);
  return Invalid(Str("log_level: must be debug, info, warning, error or off, not \"", text, "\""));
}

Result<engine::Options> OptionsOf(const moonpool_engine_options& given) {
  engine::Options options;
  options.listen = Setting(given.listen, "MOONPOOL_LISTEN", "127.0.0.1:0");
  options.name = Setting(given.name, "MOONPOOL_NAME", "");
  options.advertise_host = Setting(given.advertise_host, "MOONPOOL_ADVERTISE_HOST", "");
  options.transports = Names(Setting(given.transports, "MOONPOOL_TRANSPORTS", ""));
  MOONPOOL_ASSIGN_OR_RETURN(const double timeout,
                            NumberSetting(given.timeout, "MOONPOOL_TIMEOUT", 30));
  MOONPOOL_ASSIGN_OR_RETURN(options.timeout, Seconds(timeout, "timeout"));
  MOONPOOL_ASSIGN_OR_RETURN(const double workers,
                            NumberSetting(given.workers, "MOONPOOL_WORKERS", 2));
  if (!(workers >= 0 && workers < 1000)) return Invalid("workers: must be in 1 .. 16");
  options.workers = static_cast<int>(workers);
  options.checksum = given.no_checksum == 0 && Setting(nullptr, "MOONPOOL_CHECKSUM", "1") != "0";
  return options;
}

Result<std::unique_ptr<moonpool_engine>> Create(const moonpool_engine_options& given) {
  MOONPOOL_ASSIGN_OR_RETURN(const auto level,
                            LevelOf(Setting(given.log_level, "MOONPOOL_LOG_LEVEL", "warning")));
  MOONPOOL_ASSIGN_OR_RETURN(const engine::Options options, OptionsOf(given));
  auto made = std::make_unique<moonpool_engine>(level);
  engine::World world{made->clock, made->log, moonpool::transport::BuiltinFactories(),
                      nullptr,     nullptr,   {}};
  const std::string url = Setting(given.registry, "MOONPOOL_REGISTRY", "");
  if (!url.empty()) {
    const auto factories = moonpool::registry::BuiltinFactories();
    MOONPOOL_ASSIGN_OR_RETURN(world.registry,
                              moonpool::registry::Open(factories, {made->clock, made->log}, url));
  }
  MOONPOOL_ASSIGN_OR_RETURN(made->engine, engine::Engine::Create(options, std::move(world)));
  return made;
}

// The part of a caller's struct that both sides know.
template <typename T>
Result<T> CopyKnown(const T* given, const char* what) {
  T known{};
  if (given == nullptr) return known;
  if (given->struct_size < sizeof(size_t))
    return Invalid(
        Str(what, ".struct_size: must be the struct's sizeof, not ", given->struct_size));
  std::memcpy(static_cast<void*>(&known), given, std::min(given->struct_size, sizeof(T)));
  return known;
}

void CopyText(const std::string& text, char* out, size_t room) {
  const size_t size = std::min(text.size(), room - 1);
  std::memcpy(out, text.data(), size);
  out[size] = '\0';
}

Status CheckPointer(const void* pointer, const char* what) {
  return pointer == nullptr ? Invalid(Str(what, ": must not be null")) : Status::Ok();
}

Result<engine::BatchHandle> Submit(engine::Engine& engine, const moonpool_batch_request& request) {
  std::vector<engine::Group> groups;
  if (request.group_count > 0) MOONPOOL_RETURN_IF_ERROR(CheckPointer(request.groups, "groups"));
  for (size_t i = 0; i < request.group_count; ++i) {
    const moonpool_group& group = request.groups[i];
    if (group.count > 0 &&
        (group.local == nullptr || group.remote == nullptr || group.lengths == nullptr))
      return Invalid(Str("group ", i, ": local, remote and lengths must not be null"));
    groups.push_back(
        {group.segment,
         group.write != 0 ? moonpool::transport::Op::kWrite : moonpool::transport::Op::kRead,
         {group.local, group.count},
         {group.remote, group.count},
         {group.lengths, group.count}});
  }
  if (request.payload_size > 0) MOONPOOL_RETURN_IF_ERROR(CheckPointer(request.payload, "payload"));
  engine::BatchRequest batch;
  batch.groups = groups;
  MOONPOOL_ASSIGN_OR_RETURN(batch.timeout, Seconds(request.limit, "limit"));
  batch.priority = request.latency != 0 ? engine::Priority::kLatency : engine::Priority::kBulk;
  batch.notify = request.notify != 0;
  if (batch.notify && request.payload_size > 0)
    batch.payload.assign(static_cast<const char*>(request.payload), request.payload_size);
  batch.to_queue = request.to_queue != 0;
  return engine.Submit(batch);
}

moonpool_code Wait(engine::Engine& engine, uint64_t batch, Duration wait) {
  const Status status = engine.Wait(batch, wait);
  if (status.ok()) return Fail(status);
  const auto polled = engine.Poll(batch);
  if (!polled.ok()) return Fail(status);
  if (!polled->done) return Fail(Status(Code::kAgain, Str("batch ", batch, " is still running")));
  return Fail(polled->status, {polled->peer, polled->failed_transport, polled->phase});
}

}  // namespace

moonpool_code moonpool_engine_create(const moonpool_engine_options* options,
                                     moonpool_engine** out) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(out, "engine"));
    *out = nullptr;
    MOONPOOL_ASSIGN_OR_RETURN(const auto known, CopyKnown(options, "options"));
    MOONPOOL_ASSIGN_OR_RETURN(auto made, Create(known));
    *out = made.release();
    return Status::Ok();
  });
}

void moonpool_engine_close(moonpool_engine* self) { self->engine->Close(); }

void moonpool_engine_destroy(moonpool_engine* self) {
  if (self != nullptr) self->engine->Close();
  std::unique_ptr<moonpool_engine>(self).reset();
}

const char* moonpool_engine_address(const moonpool_engine* self) {
  return self->engine->address().c_str();
}

const char* moonpool_engine_name(const moonpool_engine* self) {
  return self->engine->name().c_str();
}

int moonpool_event_fd(const moonpool_engine* self) { return self->engine->event_fd(); }

moonpool_code moonpool_register(moonpool_engine* self, void* address, uint64_t size, int rights) {
  return Guard([&]() -> Status {
    MOONPOOL_ASSIGN_OR_RETURN(const Rights allowed, RightsOf(rights));
    return self->engine->Register(address, size, allowed).status();
  });
}

moonpool_code moonpool_deregister(moonpool_engine* self, void* address, double limit) {
  return Guard([&]() -> Status {
    MOONPOOL_ASSIGN_OR_RETURN(const Duration timeout, Seconds(limit, "limit"));
    return self->engine->Deregister(address, timeout);
  });
}

moonpool_code moonpool_allocate(moonpool_engine* self, uint64_t size, int rights, void** address) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(address, "address"));
    MOONPOOL_ASSIGN_OR_RETURN(const Rights allowed, RightsOf(rights));
    MOONPOOL_ASSIGN_OR_RETURN(const auto region, self->engine->Allocate(size, allowed, false));
    *address = reinterpret_cast<void*>(region.address);
    return Status::Ok();
  });
}

moonpool_code moonpool_free(moonpool_engine* self, void* address, double limit) {
  return Guard([&]() -> Status {
    MOONPOOL_ASSIGN_OR_RETURN(const Duration timeout, Seconds(limit, "limit"));
    return self->engine->Free(address, timeout);
  });
}

moonpool_code moonpool_open(moonpool_engine* self, const char* name, double limit,
                            uint64_t* segment) {
  const Blame blame{name == nullptr ? "" : name, "", moonpool::transport::Phase::kNone};
  const auto open = [&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(name, "name"));
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(segment, "segment"));
    MOONPOOL_ASSIGN_OR_RETURN(const Duration timeout, Seconds(limit, "limit"));
    MOONPOOL_ASSIGN_OR_RETURN(*segment, self->engine->Open(name, timeout));
    return Status::Ok();
  };
  return Guard(open, blame);
}

moonpool_code moonpool_close_segment(moonpool_engine* self, uint64_t segment) {
  return Guard([&] { return self->engine->CloseSegment(segment); });
}

moonpool_code moonpool_segment_regions(moonpool_engine* self, uint64_t segment,
                                       moonpool_region* regions, size_t* count) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(count, "count"));
    if (*count > 0) MOONPOOL_RETURN_IF_ERROR(CheckPointer(regions, "regions"));
    MOONPOOL_ASSIGN_OR_RETURN(const auto info, self->engine->Segment(segment, true, Duration(0)));
    const size_t room = *count;
    *count = info.regions.size();
    for (size_t i = 0; i < std::min(room, info.regions.size()); ++i)
      regions[i] = {info.regions[i].address, info.regions[i].size,
                    static_cast<int>(info.regions[i].rights)};
    return Status::Ok();
  });
}

moonpool_code moonpool_submit(moonpool_engine* self, const moonpool_batch_request* request,
                              uint64_t* batch) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(request, "request"));
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(batch, "batch"));
    MOONPOOL_ASSIGN_OR_RETURN(const auto known, CopyKnown(request, "request"));
    MOONPOOL_ASSIGN_OR_RETURN(*batch, Submit(*self->engine, known));
    return Status::Ok();
  });
}

moonpool_code moonpool_wait(moonpool_engine* self, uint64_t batch, double wait) {
  moonpool_code outcome = MOONPOOL_INTERNAL;
  const moonpool_code called = Guard([&]() -> Status {
    MOONPOOL_ASSIGN_OR_RETURN(const Duration limit, WaitSeconds(wait));
    outcome = Wait(*self->engine, batch, limit);
    return Status::Ok();
  });
  return called == MOONPOOL_OK ? outcome : called;
}

moonpool_code moonpool_poll(moonpool_engine* self, uint64_t batch, moonpool_batch_status* status) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(status, "status"));
    MOONPOOL_ASSIGN_OR_RETURN(const auto polled, self->engine->Poll(batch));
    *status = moonpool_batch_status{};
    status->done = polled.done ? 1 : 0;
    status->code = polled.done ? moonpool::capi::CodeOf(polled.status.code()) : MOONPOOL_OK;
    status->bytes_total = polled.bytes_total;
    status->bytes_done = polled.bytes_done;
    status->retries = polled.retries;
    CopyText(polled.transport, status->transport, sizeof(status->transport));
    return Status::Ok();
  });
}

moonpool_code moonpool_cancel(moonpool_engine* self, uint64_t batch) {
  return Guard([&] { return self->engine->Cancel(batch); });
}

moonpool_code moonpool_release(moonpool_engine* self, uint64_t batch) {
  return Guard([&] { return self->engine->Release(batch); });
}

moonpool_code moonpool_completed(moonpool_engine* self, uint64_t* batches, size_t* count,
                                 double wait) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(count, "count"));
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(batches, "batches"));
    MOONPOOL_ASSIGN_OR_RETURN(const Duration limit, WaitSeconds(wait));
    const auto done = self->engine->NextCompleted(*count, limit);
    *count = done.size();
    std::copy(done.begin(), done.end(), batches);
    return Status::Ok();
  });
}

moonpool_code moonpool_notify(moonpool_engine* self, uint64_t segment,
                              const moonpool_notification* notification) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(notification, "notification"));
    std::string payload;
    if (notification->size > 0) {
      MOONPOOL_RETURN_IF_ERROR(CheckPointer(notification->payload, "notification.payload"));
      if (notification->size > MOONPOOL_NOTIFICATION_BYTES_MAX)
        return Invalid(Str("notification.size: must be ", MOONPOOL_NOTIFICATION_BYTES_MAX,
                           " at most, not ", notification->size));
      payload.assign(static_cast<const char*>(notification->payload), notification->size);
    }
    return self->engine->Notify(segment, std::move(payload), Duration(0));
  });
}

moonpool_code moonpool_take_notification(moonpool_engine* self, double wait,
                                         moonpool_notification* notification) {
  return Guard([&]() -> Status {
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(notification, "notification"));
    MOONPOOL_RETURN_IF_ERROR(CheckPointer(notification->payload, "notification.payload"));
    if (notification->capacity < MOONPOOL_NOTIFICATION_BYTES_MAX)
      return Invalid(Str("notification.capacity: must be ", MOONPOOL_NOTIFICATION_BYTES_MAX,
                         " at least, not ", notification->capacity));
    MOONPOOL_ASSIGN_OR_RETURN(const Duration limit, WaitSeconds(wait));
    const auto taken = self->engine->TakeNotifications(1, limit);
    if (taken.empty()) return Status(Code::kAgain, "no notification came");
    const std::string& payload = taken.front().payload;
    notification->size = std::min(payload.size(), notification->capacity);
    std::memcpy(notification->payload, payload.data(), notification->size);
    CopyText(taken.front().sender, notification->sender, sizeof(notification->sender));
    return Status::Ok();
  });
}

const char* moonpool_version(void) { return MOONPOOL_VERSION; }
