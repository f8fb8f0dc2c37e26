#include "net/resolver.h"

#include <netdb.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/str.h"
#include "base/thread.h"

namespace moonpool::net {
namespace {

using Endpoints = Result<std::vector<Endpoint>>;

Endpoints SystemLookup(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (error != 0) return Status(Code::kUnavailable, ::gai_strerror(error));
  std::vector<Endpoint> out;
  for (const addrinfo* it = list; it != nullptr; it = it->ai_next) {
    Endpoint endpoint(it->ai_addr, it->ai_addrlen);
    if (endpoint.valid()) out.push_back(endpoint);
  }
  ::freeaddrinfo(list);
  if (out.empty()) return Status(Code::kUnavailable, "the name has no IPv4 or IPv6 address");
  return out;
}

// One look-up: shared by the callers that wait for it and by the thread that does it.
struct Job {
  Mutex mutex;
  CondVar changed;
  std::optional<Endpoints> result MOONPOOL_GUARDED_BY(mutex);
  bool cancelled MOONPOOL_GUARDED_BY(mutex) = false;

  bool Done(Duration patience = Duration(0)) MOONPOOL_EXCLUDES(mutex) {
    const Time until = BootClock::now() + patience;
    MutexLock lock(mutex);
    while (!result.has_value() && BootClock::now() < until) {
      changed.WaitFor(mutex, until - BootClock::now());
    }
    return result.has_value();
  }
};

}  // namespace

struct Resolver::State {
  struct Running {
    std::shared_ptr<Job> job;  // shared with its thread and the waiting callers
    Thread thread;
  };
  Mutex mutex;
  bool cancelled MOONPOOL_GUARDED_BY(mutex) = false;
  std::map<std::string, Running> running MOONPOOL_GUARDED_BY(mutex);
};

Resolver::Resolver(const Clock& clock, Lookup lookup, Duration goodbye)
    : clock_(clock),
      lookup_(lookup ? std::move(lookup) : Lookup(SystemLookup)),
      goodbye_(goodbye),
      state_(std::make_unique<State>()) {}

Resolver::~Resolver() {
  Cancel();
  const Time until = BootClock::now() + goodbye_;
  MutexLock lock(state_->mutex);
  for (auto& [host, running] : state_->running) {
    // Done: its thread is about to end, and is joined by the map.
    if (running.job->Done(std::max(Duration(0), until - BootClock::now()))) continue;
    // Stuck inside the C library; see the header.
    [[maybe_unused]] Thread* abandoned =
        std::make_unique<Thread>(std::move(running.thread)).release();
  }
}

void Resolver::Cancel() {
  std::vector<std::shared_ptr<Job>> jobs;
  {
    MutexLock lock(state_->mutex);
    state_->cancelled = true;
    for (auto& [host, running] : state_->running) jobs.push_back(running.job);
  }
  for (const auto& job : jobs) {
    MutexLock lock(job->mutex);
    job->cancelled = true;
    job->changed.NotifyAll();
  }
}

Result<std::vector<Endpoint>> Resolver::Resolve(const HostPort& name, Time deadline) {
  if (const auto numeric = NumericEndpoint(name.host, name.port)) {
    return std::vector<Endpoint>{*numeric};
  }
  const std::string what = Str("resolve '", name.host, "'");
  std::shared_ptr<Job> job;
  std::vector<Thread> finished;  // joined after the lock is released
  {
    MutexLock lock(state_->mutex);
    if (state_->cancelled) return Status(Code::kCancelled, Str(what, ": closed"));
    for (auto it = state_->running.begin(); it != state_->running.end();) {
      if (it->second.job->Done()) {
        finished.push_back(std::move(it->second.thread));
        it = state_->running.erase(it);
      } else {
        ++it;
      }
    }
    if (const auto it = state_->running.find(name.host); it != state_->running.end()) {
      job = it->second.job;
    } else if (state_->running.size() >= kLookupsMax) {
      return Status(Code::kExhausted,
                    Str(what, ": ", kLookupsMax, " look-ups of other names have not returned"));
    } else {
      job = std::make_shared<Job>();
      Thread thread("mp-resolve", [job, lookup = lookup_, host = name.host](std::stop_token) {
        Endpoints found = lookup(host);
        MutexLock done(job->mutex);
        job->result.emplace(std::move(found));
        job->changed.NotifyAll();
      });
      state_->running.emplace(name.host, State::Running{job, std::move(thread)});
    }
  }
  MutexLock lock(job->mutex);
  while (!job->result.has_value()) {
    if (job->cancelled) return Status(Code::kCancelled, Str(what, ": closed"));
    const Time now = clock_.Now();
    if (now >= deadline) {
      return Status(Code::kTimedOut, Str(what, ": the name server has not answered in time"));
    }
    const Duration pause = deadline - now;
    job->changed.WaitFor(job->mutex, std::min<Duration>(pause, std::chrono::hours(1)));
  }
  if (!job->result->ok()) return job->result->status().WithContext(what);
  std::vector<Endpoint> out = job->result->value();
  for (Endpoint& endpoint : out) endpoint = endpoint.WithPort(name.port);
  return out;
}

}  // namespace moonpool::net
