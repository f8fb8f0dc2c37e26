#include "registry/server.h"

#include <charconv>
#include <utility>

#include "base/mutex.h"
#include "base/str.h"
#include "http/server.h"
#include "registry/protocol.h"

namespace moonpool::registry {
namespace {

namespace web = ::moonpool::http;  // registry::http is the client's leaf

constexpr size_t kListMax = 10'000;
constexpr size_t kBodyBytesMax = kValueBytesMax + 4096;  // a little more, to say so properly

web::Response Failure(const Status& status) {
  int code = 500;
  switch (status.code()) {
    case Code::kInvalidArgument:
      code = 400;
      break;
    case Code::kNotFound:
      code = 404;
      break;
    case Code::kStale:
    case Code::kAlreadyExists:
      code = 409;
      break;
    case Code::kExhausted:
      code = 507;
      break;
    default:
      break;
  }
  return web::Text(code, Str(status.message(), "\n"));
}

Result<std::string> Parameter(const web::Request& request, const std::string& name) {
  const auto it = request.query.find(name);
  if (it != request.query.end()) return it->second;
  return Status(Code::kInvalidArgument, Str("parameter '", name, "' is missing"));
}

Result<uint64_t> Number(const web::Request& request, const std::string& name, int base) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string text, Parameter(request, name));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Status(Code::kInvalidArgument, Str("parameter '", name, "' is not a number"));
  }
  return value;
}

Result<OwnerToken> Owner(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const uint64_t owner, Number(request, "owner", 16));
  if (owner == Table::kNoOwner) {
    return Status(Code::kInvalidArgument, "parameter 'owner' is 0, which is nobody's");
  }
  return owner;
}

Result<Duration> Lease(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const uint64_t ms, Number(request, "lease_ms", 10));
  // In this order: the largest numbers overflow a Duration.
  const auto max_ms = std::chrono::duration_cast<std::chrono::milliseconds>(kLeaseMax).count();
  if (ms > static_cast<uint64_t>(max_ms) || std::chrono::milliseconds(ms) < kLeaseMin) {
    return Status(Code::kInvalidArgument,
                  Str("parameter 'lease_ms' is ", ms, ", 100 to ", max_ms, " allowed"));
  }
  return Duration(std::chrono::milliseconds(ms));
}

web::Response Answer(const Status& status) {
  return status.ok() ? web::Text(200, "ok\n") : Failure(status);
}

web::Response Answer(const Result<Entry>& entry) {
  if (!entry.ok()) return Failure(entry.status());
  web::Response response{.status = 200, .body = entry->value};
  response.headers["Content-Type"] = "application/octet-stream";
  response.headers[protocol::kEntryVersionField] = Str(entry->version);
  return response;
}

web::Response Answer(const Result<uint64_t>& version) {
  if (!version.ok()) return Failure(version.status());
  web::Response response = web::Text(200, "ok\n");
  response.headers[protocol::kEntryVersionField] = Str(*version);
  return response;
}

}  // namespace

struct Server::State {
  State(const Clock& clock_in, const TableBounds& bounds) : clock(clock_in), table(bounds) {}

  const Clock& clock;
  mutable Mutex mutex;
  Table table MOONPOOL_GUARDED_BY(mutex);
  std::unique_ptr<web::Server> http;  // its handlers use the above

  Result<uint64_t> Put(const web::Request& request);
  Result<Entry> Get(const web::Request& request, const char* key);
  Status Remove(const web::Request& request);
  Status Renew(const web::Request& request);
  web::Response Names(const web::Request& request);
  Result<uint64_t> PutPlain(const web::Request& request);
  Status RemovePlain(const web::Request& request);
  void Route();
};

Result<uint64_t> Server::State::Put(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string name, Parameter(request, "name"));
  MOONPOOL_ASSIGN_OR_RETURN(const OwnerToken owner, Owner(request));
  MOONPOOL_ASSIGN_OR_RETURN(const Duration lease, Lease(request));
  const bool if_absent = request.query.count("if_absent") != 0;
  MutexLock lock(mutex);
  return table.Put(
      {.name = name, .value = request.body, .owner = owner, .lease = lease, .if_absent = if_absent},
      clock.Now());
}

Result<Entry> Server::State::Get(const web::Request& request, const char* key) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string name, Parameter(request, key));
  MutexLock lock(mutex);
  return table.Get(name, clock.Now());
}

Status Server::State::Remove(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string name, Parameter(request, "name"));
  MOONPOOL_ASSIGN_OR_RETURN(const OwnerToken owner, Owner(request));
  MutexLock lock(mutex);
  return table.Remove(name, owner, clock.Now());
}

Status Server::State::Renew(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string name, Parameter(request, "name"));
  MOONPOOL_ASSIGN_OR_RETURN(const OwnerToken owner, Owner(request));
  MOONPOOL_ASSIGN_OR_RETURN(const Duration lease, Lease(request));
  MutexLock lock(mutex);
  return table.Renew(name, owner, lease, clock.Now());
}

web::Response Server::State::Names(const web::Request& request) {
  const auto prefix = Parameter(request, "prefix");
  std::vector<std::string> names;
  {
    MutexLock lock(mutex);
    names = table.List(prefix.ok() ? *prefix : "", kListMax, clock.Now());
  }
  std::string text;
  for (const std::string& name : names) text.append(name).append(1, '\n');
  return web::Text(200, text);
}

Result<uint64_t> Server::State::PutPlain(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string key, Parameter(request, "key"));
  MutexLock lock(mutex);
  return table.Put({.name = key, .value = request.body}, clock.Now());
}

Status Server::State::RemovePlain(const web::Request& request) {
  MOONPOOL_ASSIGN_OR_RETURN(const std::string key, Parameter(request, "key"));
  MutexLock lock(mutex);
  return table.RemoveAny(key, clock.Now());
}

void Server::State::Route() {
  http->Handle("GET", protocol::kRoot, [](const web::Request&) {
    web::Response response = web::Text(200, "moonpool registry, version 1\n");
    response.headers.emplace(protocol::kVersionField, "1");
    return response;
  });
  http->Handle("PUT", protocol::kEntry, [this](const web::Request& r) { return Answer(Put(r)); });
  http->Handle("GET", protocol::kEntry,
               [this](const web::Request& r) { return Answer(Get(r, "name")); });
  http->Handle("DELETE", protocol::kEntry,
               [this](const web::Request& r) { return Answer(Remove(r)); });
  http->Handle("PUT", protocol::kLease, [this](const web::Request& r) { return Answer(Renew(r)); });
  http->Handle("GET", protocol::kNames, [this](const web::Request& r) { return Names(r); });
  http->Handle("PUT", protocol::kPlain,
               [this](const web::Request& r) { return Answer(PutPlain(r)); });
  http->Handle("GET", protocol::kPlain,
               [this](const web::Request& r) { return Answer(Get(r, "key")); });
  http->Handle("DELETE", protocol::kPlain,
               [this](const web::Request& r) { return Answer(RemovePlain(r)); });
}

Result<std::unique_ptr<Server>> Server::Create(const Clock& clock, Logger* log,
                                               const ServerOptions& options) {
  auto state = std::make_unique<State>(clock, options.bounds);
  web::ServerOptions http;
  http.bind_host = options.bind_host;
  http.port = options.port;
  http.connections_max = 4096;
  http.body_bytes_max = kBodyBytesMax;
  http.tick = Table::kTick;
  http.on_tick = [raw = state.get()](Time now) {
    MutexLock lock(raw->mutex);
    raw->table.Tick(now);
  };
  MOONPOOL_ASSIGN_OR_RETURN(state->http, web::Server::Create(clock, log, http));
  state->Route();
  return std::make_unique<Server>(std::move(state));
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() { Close(); }

Status Server::Start() { return state_->http->Start(); }

uint16_t Server::port() const { return state_->http->port(); }

size_t Server::entries() const {
  MutexLock lock(state_->mutex);
  return state_->table.entries();
}

void Server::Close() { state_->http->Close(); }

}  // namespace moonpool::registry
