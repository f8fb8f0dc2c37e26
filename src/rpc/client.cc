#include "rpc/client.h"

#include <algorithm>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/str.h"
#include "net/poller.h"
#include "net/resolver.h"
#include "net/socket.h"
#include "rpc/channel.h"

namespace moonpool::rpc {

std::string_view FailurePhaseName(FailurePhase phase) {
  switch (phase) {
    case FailurePhase::kNone:
      return "none";
    case FailurePhase::kResolve:
      return "resolve";
    case FailurePhase::kConnect:
      return "connect";
    case FailurePhase::kHandshake:
      return "handshake";
    case FailurePhase::kData:
      return "data";
  }
  return "unknown";
}

struct Client::State {
  // What is known of one "host:port".
  struct Peer {
    std::shared_ptr<Channel> channel;  // shared with the calls in progress; null: none
    bool opening = false;              // one caller connects, the others wait
    size_t users = 0;                  // callers that hold a reference to this entry
    Time last_used{};
    std::list<std::string>::iterator recency;
  };

  State(const Clock& clock_in, Logger* log_in, const ClientOptions& options_in)
      : clock(clock_in), log(log_in), options(options_in), resolver(clock_in) {}

  const Clock& clock;
  Logger* const log;
  const ClientOptions options;
  net::Resolver resolver;
  std::optional<net::Waker> waker;  // woken once, by Close; empty: no descriptor was left

  mutable Mutex mutex;
  CondVar changed;  // an opening ended, a call left, or Close was called
  bool closed MOONPOOL_GUARDED_BY(mutex) = false;
  size_t active MOONPOOL_GUARDED_BY(mutex) = 0;  // calls in progress
  std::unordered_map<std::string, Peer> peers MOONPOOL_GUARDED_BY(mutex);
  std::list<std::string> recency MOONPOOL_GUARDED_BY(mutex);  // least recently used first

  Result<Peer*> Enter(const Request& request);
  void Leave(Peer* peer);
  bool EvictOne(Time now, bool expired_only) MOONPOOL_REQUIRES(mutex);
  Result<std::shared_ptr<Channel>> Acquire(Peer& peer, const Request& request, CallInfo& info);
  Result<std::shared_ptr<Channel>> Open(const Request& request, CallInfo& info);
  Result<std::string> Run(Peer& peer, const Request& request, CallInfo& info);
};

// Closes the least recently used idle entry; with `expired_only`, only if it has been idle for too
// long.
bool Client::State::EvictOne(Time now, bool expired_only) {
  for (const std::string& name : recency) {
    const auto it = peers.find(name);
    if (expired_only && now - it->second.last_used < options.idle_max) return false;
    if (it->second.users > 0) continue;
    recency.erase(it->second.recency);
    peers.erase(it);
    return true;
  }
  return false;
}

Result<Client::State::Peer*> Client::State::Enter(const Request& request) {
  MutexLock lock(mutex);
  if (closed) return Status(Code::kCancelled, "the RPC client is closed");
  const Time now = clock.Now();
  while (EvictOne(now, true)) {
  }
  auto it = peers.find(request.host_port);
  if (it == peers.end()) {
    if (peers.size() >= options.connections_max && !EvictOne(now, false)) {
      return Status(Code::kExhausted, Str("all ", options.connections_max,
                                          " connections of the RPC client are busy"));
    }
    it = peers.emplace(request.host_port, Peer{}).first;
    it->second.recency = recency.insert(recency.end(), request.host_port);
  }
  Peer& peer = it->second;
  recency.splice(recency.end(), recency, peer.recency);
  peer.last_used = now;
  ++peer.users;
  ++active;
  return &peer;  // unordered_map keeps addresses; entries with users stay
}

void Client::State::Leave(Peer* peer) {
  MutexLock lock(mutex);
  peer->last_used = clock.Now();
  if (--peer->users == 0 && peer->channel == nullptr) {  // nothing worth keeping
    const auto at = peer->recency;
    const std::string name = *at;
    recency.erase(at);
    peers.erase(name);
  }
  --active;
  changed.NotifyAll();
}

Result<std::shared_ptr<Channel>> Client::State::Open(const Request& request, CallInfo& info) {
  info.phase = FailurePhase::kResolve;
  MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort name, net::ParseHostPort(request.host_port));
  MOONPOOL_ASSIGN_OR_RETURN(const std::vector<net::Endpoint> endpoints,
                            resolver.Resolve(name, request.deadline));
  info.phase = FailurePhase::kConnect;
  MOONPOOL_ASSIGN_OR_RETURN(UniqueFd fd,
                            net::Connect(clock, endpoints, request.deadline, waker->fd()));
  info.peer_host = net::PeerEndpoint(fd.get()).host();
  info.phase = FailurePhase::kHandshake;
  return Channel::Open({clock, options, waker->fd()}, std::move(fd), request.deadline);
}

// The peer's channel, opened by this caller if need be.
Result<std::shared_ptr<Channel>> Client::State::Acquire(Peer& peer, const Request& request,
                                                        CallInfo& info) {
  {
    MutexLock lock(mutex);
    while (true) {
      if (closed) return Status(Code::kCancelled, "the RPC client is closed");
      if (peer.channel && !peer.channel->broken()) return peer.channel;
      peer.channel = nullptr;
      if (!peer.opening) break;
      const Duration left = request.deadline - clock.Now();
      if (left <= Duration(0)) {
        info.phase = FailurePhase::kConnect;
        return Status(Code::kTimedOut, "another call is still connecting to this peer");
      }
      changed.WaitFor(mutex, std::min<Duration>(left, std::chrono::hours(1)));
    }
    peer.opening = true;
  }
  auto opened = Open(request, info);
  MutexLock lock(mutex);
  peer.opening = false;
  changed.NotifyAll();
  if (opened.ok()) peer.channel = *opened;
  return opened;
}

Result<std::string> Client::State::Run(Peer& peer, const Request& request, CallInfo& info) {
  // A pooled connection may turn out dead before the request was sent: then one more.
  for (int attempt = 0;; ++attempt) {
    MOONPOOL_ASSIGN_OR_RETURN(const std::shared_ptr<Channel> channel, Acquire(peer, request, info));
    info.peer_host = channel->peer_host();
    info.phase = FailurePhase::kData;
    Channel::Outcome outcome;
    auto result = channel->Call(request, outcome);
    info.answered = outcome.answered;
    if (result.ok() || outcome.answered) {
      info.phase = FailurePhase::kNone;
      return result;
    }
    const bool retry = !outcome.sent && result.code() == Code::kUnavailable && attempt == 0;
    if (!retry) return result;
  }
}

Client::Client(const Clock& clock, Logger* log, const ClientOptions& options)
    : state_(std::make_unique<State>(clock, log, options)) {
  auto waker = net::Waker::Create();
  if (waker.ok()) state_->waker.emplace(std::move(waker).value());
}

Client::~Client() { Close(); }

Result<std::string> Client::Call(const Request& request, CallInfo* info) {
  CallInfo local;
  CallInfo& out = info != nullptr ? *info : local;
  out = CallInfo();
  if (!state_->waker) return Status(Code::kExhausted, "no descriptor was left for the RPC client");
  if (request.method.empty() || request.method.size() > kMethodBytesMax) {
    return Status(Code::kInvalidArgument,
                  Str("method '", request.method.substr(0, kMethodBytesMax), "' has ",
                      request.method.size(), " bytes, 1 to ", kMethodBytesMax, " allowed"));
  }
  if (request.payload.size() > state_->options.frame_bytes_max) {
    return Status(Code::kInvalidArgument,
                  Str("request of ", request.payload.size(), " bytes to '", request.method, "', ",
                      state_->options.frame_bytes_max, " allowed"));
  }
  MOONPOOL_ASSIGN_OR_RETURN(State::Peer* const peer, state_->Enter(request));
  auto result = state_->Run(*peer, request, out);
  state_->Leave(peer);
  if (result.ok()) return result;
  if (out.answered) {
    return result.status().WithContext(Str("rpc '", request.method, "' at ", request.host_port));
  }
  return result.status().WithContext(
      Str("rpc '", request.method, "' to ", request.host_port, ": ", FailurePhaseName(out.phase)));
}

void Client::Disconnect(const std::string& host_port) {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(state_->mutex);
    const auto it = state_->peers.find(host_port);
    if (it == state_->peers.end()) return;
    channel = std::exchange(it->second.channel, nullptr);
  }
  if (channel) channel->Abort(Status(Code::kUnavailable, "disconnected by this side"));
}

void Client::Close() {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    MutexLock lock(state_->mutex);
    state_->closed = true;
    for (auto& [name, peer] : state_->peers) {
      if (peer.channel) channels.push_back(std::move(peer.channel));
      peer.channel = nullptr;
    }
    state_->changed.NotifyAll();
  }
  if (state_->waker) state_->waker->Wake();
  state_->resolver.Cancel();
  for (const auto& channel : channels) {
    channel->Abort(Status(Code::kCancelled, "the RPC client was closed"));
  }
  MutexLock lock(state_->mutex);
  while (state_->active > 0) state_->changed.Wait(state_->mutex);
}

size_t Client::connections() const {
  MutexLock lock(state_->mutex);
  size_t count = 0;
  for (const auto& [name, peer] : state_->peers) count += peer.channel != nullptr ? 1 : 0;
  return count;
}

}  // namespace moonpool::rpc
