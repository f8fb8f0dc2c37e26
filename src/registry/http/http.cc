#include "registry/http/http.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"
#include "base/str.h"
#include "base/thread.h"
#include "net/address.h"
#include "registry/protocol.h"

namespace moonpool::registry::http {
namespace {

namespace web = ::moonpool::http;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Capabilities kLeaseCapabilities{};
constexpr Capabilities kPlainCapabilities{.stores = true, .lists = false, .atomic = false};
constexpr Duration kGoodbye = milliseconds(500);  // for all removals of Close together

int64_t SystemWallMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<milliseconds>(now).count();
}

// Both dialects over one client.
struct Server {
  Server(const Clock& clock, const std::string& base, const std::string& url, const WallClock& wall)
      : client(clock, kValueBytesMax + (64 << 10)),
        ours(MakeLeaseDialect(client, base)),
        plain(MakePlainDialect(client, url, wall)) {}
  web::Client client;
  const std::unique_ptr<Dialect> ours;
  const std::unique_ptr<Dialect> plain;
};

class HttpRegistry final : public Registry {
 public:
  struct Place {
    std::string base;  // http://host:port
    std::string url;   // with the plain server's path
  };
  HttpRegistry(const Environment& env, Place place, const WallClock& wall)
      : env_(env),
        base_(place.base),
        server_(env.clock, place.base, place.url, wall),
        renewing_server_(env.clock, place.base, place.url, wall) {}
  ~HttpRegistry() override { Close(); }

  std::string_view name() const override { return "http"; }
  const Capabilities& capabilities() const override {
    const bool plain = kind_.load(std::memory_order_relaxed) == Kind::kPlain;
    return plain ? kPlainCapabilities : kLeaseCapabilities;
  }
  Result<OwnerToken> Put(const Registration& registration, Time deadline) override;
  Result<Entry> Get(std::string_view name, Time deadline) override {
    MOONPOOL_RETURN_IF_ERROR(CheckName(name));
    MOONPOOL_ASSIGN_OR_RETURN(Dialect* const dialect, Reach(server_, deadline));
    return dialect->Get(name, deadline);
  }
  Status Remove(std::string_view name, OwnerToken token, Time deadline) override;
  Result<std::vector<std::string>> List(std::string_view prefix, Time deadline) override {
    MOONPOOL_ASSIGN_OR_RETURN(Dialect* const dialect, Reach(server_, deadline));
    return dialect->List(prefix, deadline);
  }
  Status Check(std::string_view name, OwnerToken token) const override;
  void Close() override;

 private:
  enum class Kind { kUnknown, kOurs, kPlain };
  // A Put of this registry's, and how its renewals fare.
  struct Lease {
    Held entry;
    Time next{};
    Status status{};    // of the last renewal
    bool lost = false;  // another owner has the name: no more renewals
  };

  Result<Dialect*> Reach(Server& server, Time deadline);
  Status TakeName(const std::string& name, Time deadline) MOONPOOL_EXCLUDES(mutex_);
  void ReleaseName(const std::string& name) MOONPOOL_EXCLUDES(mutex_);
  void RenewLoop(const std::stop_token& stop);
  Lease* NextDue() MOONPOOL_REQUIRES(mutex_);
  Status RenewOne(Held& entry);
  void Note(Lease& lease, const Held& entry, const Status& status) MOONPOOL_REQUIRES(mutex_);

  const Environment env_;
  const std::string base_;
  Server server_;                           // thread-safe
  Server renewing_server_;                  // of mp-lease, so that Close can stop it alone
  std::atomic<Kind> kind_{Kind::kUnknown};  // publishes nothing but itself

  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ MOONPOOL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Lease, std::less<>> leases_ MOONPOOL_GUARDED_BY(mutex_);
  // Names that a Put, Remove or renewal is at work on, one at a time each.
  std::set<std::string> busy_ MOONPOOL_GUARDED_BY(mutex_);
  Thread thread_ MOONPOOL_GUARDED_BY(mutex_);
};

// The dialect that the server speaks; asks it if that is not known yet.
Result<Dialect*> HttpRegistry::Reach(Server& server, Time deadline) {
  Kind kind = kind_.load(std::memory_order_relaxed);
  if (kind == Kind::kUnknown) {
    MOONPOOL_ASSIGN_OR_RETURN(const web::Response response,
                              server.client.Send({.url = base_ + protocol::kRoot}, deadline));
    if (response.status >= 500 && response.status != 501) return StatusOf(response);
    const bool ours =
        response.status == 200 && response.headers.count(protocol::kVersionField) != 0;
    kind = ours ? Kind::kOurs : Kind::kPlain;
    kind_.store(kind, std::memory_order_relaxed);
    env_.log.Info("registry found", {{"url", base_}, {"leases", ours ? "server" : "in entries"}});
  }
  return kind == Kind::kOurs ? server.ours.get() : server.plain.get();
}

Status HttpRegistry::TakeName(const std::string& name, Time deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (closed_) return Status(Code::kCancelled, "the registry is closed");
    if (busy_.insert(name).second) return Status::Ok();
    const Duration left = deadline - env_.clock.Now();
    if (left <= Duration(0)) {
      return Status(Code::kTimedOut, Str("another call is at work on the entry '", name, "'"));
    }
    changed_.WaitFor(mutex_, std::min<Duration>(left, seconds(60)));
  }
}

void HttpRegistry::ReleaseName(const std::string& name) {
  MutexLock lock(mutex_);
  busy_.erase(name);
  changed_.NotifyAll();
}

Result<OwnerToken> HttpRegistry::Put(const Registration& registration, Time deadline) {
  MOONPOOL_RETURN_IF_ERROR(CheckRegistration(registration));
  MOONPOOL_ASSIGN_OR_RETURN(Dialect* const dialect, Reach(server_, deadline));
  Held entry{registration.name, registration.value, SecureUint64() | 1, registration.lease};
  MOONPOOL_RETURN_IF_ERROR(TakeName(entry.name, deadline));
  const auto version = dialect->Put(entry, false, deadline);
  if (version.ok()) {
    entry.version = *version;
    MutexLock lock(mutex_);
    leases_[entry.name] = Lease{entry, After(env_.clock.Now(), entry.lease / 3)};
    if (!thread_.joinable() && !closed_) {
      thread_ = Thread("mp-lease", [this](const std::stop_token& stop) { RenewLoop(stop); });
    }
  }
  ReleaseName(entry.name);
  if (!version.ok()) return version.status();
  return entry.owner;
}

Status HttpRegistry::Remove(std::string_view name, OwnerToken token, Time deadline) {
  MOONPOOL_RETURN_IF_ERROR(CheckName(name));
  const std::string key(name);
  {
    // First of all, so that renewals end whatever becomes of the call.
    MutexLock lock(mutex_);
    const auto it = leases_.find(name);
    if (it != leases_.end() && it->second.entry.owner == token) leases_.erase(it);
  }
  MOONPOOL_ASSIGN_OR_RETURN(Dialect* const dialect, Reach(server_, deadline));
  MOONPOOL_RETURN_IF_ERROR(TakeName(key, deadline));
  const Status status = dialect->Remove(name, token, deadline);
  ReleaseName(key);
  return status.code() == Code::kNotFound ? Status::Ok() : status;
}

Status HttpRegistry::Check(std::string_view name, OwnerToken token) const {
  MutexLock lock(mutex_);
  const auto it = leases_.find(name);
  if (it == leases_.end()) return Status(Code::kNotFound, Str("'", name, "' is not put here"));
  if (it->second.entry.owner == token) return it->second.status;
  return Status(Code::kStale, Str("a later Put of '", name, "' has replaced this one"));
}

// The lease to renew first, unless its name is in use.
HttpRegistry::Lease* HttpRegistry::NextDue() {
  Lease* first = nullptr;
  for (auto& [name, lease] : leases_) {
    if (lease.lost || busy_.count(name) != 0) continue;
    if (first == nullptr || lease.next < first->next) first = &lease;
  }
  return first;
}

void HttpRegistry::RenewLoop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Held entry;
    {
      MutexLock lock(mutex_);
      Lease* const due = NextDue();
      const Time now = env_.clock.Now();
      if (closed_) return;
      if (due == nullptr || due->next > now) {
        const Duration pause = due == nullptr ? Duration(seconds(60)) : due->next - now;
        changed_.WaitFor(mutex_, std::min<Duration>(pause, seconds(60)));
        continue;
      }
      entry = due->entry;
      busy_.insert(entry.name);
    }
    const Status status = RenewOne(entry);
    MutexLock lock(mutex_);
    busy_.erase(entry.name);
    changed_.NotifyAll();
    const auto it = leases_.find(entry.name);
    const bool current = it != leases_.end() && it->second.entry.owner == entry.owner;
    if (current && !closed_) Note(it->second, entry, status);
  }
}

Status HttpRegistry::RenewOne(Held& entry) {
  const Time deadline =
      After(env_.clock.Now(), std::clamp<Duration>(entry.lease / 3, milliseconds(100), seconds(2)));
  MOONPOOL_ASSIGN_OR_RETURN(Dialect* const dialect, Reach(renewing_server_, deadline));
  const Status status = dialect->Renew(entry, deadline);
  if (status.code() != Code::kNotFound) return status;
  // The server was restarted, or the lease ran out while it could not be reached.
  MOONPOOL_ASSIGN_OR_RETURN(entry.version, dialect->Put(entry, true, deadline));
  return Status::Ok();
}

void HttpRegistry::Note(Lease& lease, const Held& entry, const Status& status) {
  const bool was_ok = lease.status.ok();
  lease.status = status;
  lease.entry.version = entry.version;
  lease.lost = status.code() == Code::kStale;
  const Duration pause = status.ok()
                             ? entry.lease / 3
                             : std::clamp<Duration>(entry.lease / 6, milliseconds(50), seconds(1));
  lease.next = After(env_.clock.Now(), pause);
  if (was_ok == status.ok()) return;
  mutex_.Unlock();  // not while a line is written
  if (status.ok()) {
    env_.log.Info("registry lease renewed again", {{"name", entry.name}});
  } else {
    env_.log.Warning("registry lease not renewed",
                     {{"name", entry.name}, {"cause", status.ToString()}});
  }
  mutex_.Lock();
}

void HttpRegistry::Close() {
  Thread thread;
  std::map<std::string, Lease, std::less<>> leases;
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    thread = std::move(thread_);
    leases.swap(leases_);
    changed_.NotifyAll();
  }
  thread.RequestStop();
  renewing_server_.client.Close();
  thread.Join();
  const Time deadline = After(env_.clock.Now(), kGoodbye);
  for (const auto& [name, lease] : leases) {
    if (lease.lost) continue;
    const auto dialect = Reach(server_, deadline);
    if (!dialect.ok() || env_.clock.Now() >= deadline) break;
    // What is not removed vanishes by its lease.
    const Status removed = (*dialect)->Remove(name, lease.entry.owner, deadline);
    if (removed.code() == Code::kUnavailable) break;
  }
  server_.client.Close();
}

}  // namespace

Result<std::unique_ptr<Registry>> Create(const Environment& env, const std::string& url,
                                         WallClock wall) {
  auto parsed = web::ParseUrl(url);
  if (!parsed.ok()) return parsed.status().WithContext(Str("registry URL '", url, "'"));
  if (parsed->port == 0 || !parsed->query.empty()) {
    return Status(Code::kInvalidArgument,
                  Str("registry URL '", url, "' has ", parsed->port == 0 ? "port 0" : "a query",
                      "; expected http://host:port[/path]"));
  }
  const std::string base = Str("http://", net::HostPort{parsed->host, parsed->port}.ToString());
  std::string path = parsed->path == "/" ? std::string(protocol::kPlain) : std::string();
  for (const char c : path.empty() ? parsed->path : std::string()) {
    path += c == '/' ? std::string(1, c) : web::PercentEncode(std::string_view(&c, 1));
  }
  return std::unique_ptr<Registry>(
      std::make_unique<HttpRegistry>(env, HttpRegistry::Place{base, base + path}, wall));
}

Factory MakeFactory() {
  return Factory{.name = "http",
                 .accepts =
                     [](std::string_view url) {
                       return url.starts_with("http://") || url.starts_with("https://");
                     },
                 .create = [](const Environment& env,
                              const std::string& url) { return Create(env, url, SystemWallMs); }};
}

}  // namespace moonpool::registry::http
