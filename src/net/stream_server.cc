#include "net/stream_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/str.h"
#include "base/thread.h"
#include "net/poller.h"
#include "net/socket.h"

namespace moonpool::net {
namespace {

constexpr uint64_t kListenerToken = 0;
constexpr uint64_t kWakerToken = 1;
constexpr size_t kReadBytes = size_t{64} * 1024;
constexpr int kReadsPerEvent = 4;                 // then the other connections have their turn
constexpr int kAcceptsPerEvent = 64;              // likewise
constexpr size_t kKeptBytes = size_t{64} * 1024;  // a larger buffer is freed once it is empty
constexpr size_t kOutputMax = 1 << 20;            // a peer that leaves more unread is not read from
constexpr Duration kLingerTimeout = std::chrono::seconds(1);
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

size_t Index(SessionPhase phase) { return static_cast<size_t>(phase); }

struct Connection {
  uint64_t id = 0;
  UniqueFd fd;
  std::unique_ptr<Session> session;
  std::stop_source stop;
  std::string in;
  std::string out;
  size_t out_sent = 0;
  size_t accounted = 0;   // its share of buffered bytes
  bool eof = false;       // the peer has closed its sending side
  bool ending = false;    // nothing more is read; closed once all is sent
  bool progress = false;  // since the last Update
  bool touched = false;   // in the list of connections to update
  Poller::Interest interest{.read = true, .write = false};
  SessionPhase phase = SessionPhase::kHandshake;
  Time phase_since{};
  std::list<Connection*>::iterator place;  // in the list of its phase

  bool pending() const { return out_sent < out.size(); }
  bool wants_bytes() const {
    return !ending && out.size() - out_sent <= kOutputMax && session->wants_bytes();
  }
};

}  // namespace

class StreamServer::Loop {
 public:
  struct Parts {
    UniqueFd listener;
    Waker waker;
    Poller poller;
  };
  Loop(const Clock& clock, Logger* log, const StreamServerOptions& options, Parts parts)
      : clock_(clock),
        log_(log),
        options_(options),
        port_(LocalPort(parts.listener.get())),
        waker_(std::move(parts.waker)),
        poller_(std::move(parts.poller)),
        listener_(std::move(parts.listener)) {
    timeouts_.fill(Duration::max());
    timeouts_[Index(SessionPhase::kHandshake)] = options.handshake_timeout;
    timeouts_[Index(SessionPhase::kIdle)] = options.idle_timeout;
    timeouts_[Index(SessionPhase::kReceiving)] = options.receive_timeout;
    timeouts_[Index(SessionPhase::kSending)] = options.send_timeout;
    timeouts_[Index(SessionPhase::kClosing)] = kLingerTimeout;
  }

  uint16_t port() const { return port_; }

  void Start(MakeSession make_session) {
    make_session_ = std::move(make_session);
    thread_ = Thread(options_.thread_name, [this](const std::stop_token& stop) { Run(stop); });
  }

  void Send(uint64_t id, Output output) {
    MutexLock lock(mutex_);
    if (closed_) return;
    outbox_.emplace_back(id, std::move(output));
    if (outbox_.size() == 1) waker_.Wake();
  }

  void Close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    MutexLock lock(close_mutex_);  // held while joining: a second caller returns when all is closed
    thread_.RequestStop();
    waker_.Wake();
    thread_.Join();
    listener_.Reset();
  }

  StreamServerMetrics Metrics() const {
    MutexLock lock(mutex_);
    return metrics_;
  }

 private:
  void Run(const std::stop_token& stop);
  int TimeoutMs(Time now) const;
  void AcceptWaiting(Time now);
  bool MakeRoom();
  void Admit(UniqueFd fd, Time now);
  void Read(Connection& connection);
  void Abandon(Connection& connection);
  void Process(Connection& connection);
  bool Flush(Connection& connection);
  void DrainOutbox();
  void Touch(Connection& connection);
  void Update(Connection& connection, Time now);
  void Enter(Connection& connection, SessionPhase phase, Time now);
  void Expire(Time now);
  void Drop(Connection& connection, std::string_view cause);
  void Publish();
  Connection* Find(uint64_t id) {
    const auto it = connections_.find(id);
    return it == connections_.end() ? nullptr : it->second.get();
  }

  // Constant.
  const Clock& clock_;
  Logger* const log_;
  const StreamServerOptions options_;
  const uint16_t port_;
  std::array<Duration, kSessionPhases> timeouts_{};
  MakeSession make_session_;

  // Thread-safe.
  Waker waker_;

  mutable Mutex mutex_;
  std::vector<std::pair<uint64_t, Output>> outbox_ MOONPOOL_GUARDED_BY(mutex_);
  bool closed_ MOONPOOL_GUARDED_BY(mutex_) = false;
  StreamServerMetrics metrics_ MOONPOOL_GUARDED_BY(mutex_);

  // Of the event thread.
  Poller poller_;
  UniqueFd listener_;
  Time accept_again_ = kNever;  // kNever: the listener is being watched
  uint64_t next_id_ = 2;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::array<std::list<Connection*>, kSessionPhases> phases_;  // longest in the phase first
  std::vector<uint64_t> touched_;
  size_t buffered_ = 0;
  StreamServerMetrics counts_;
  std::array<char, kReadBytes> scratch_{};

  Mutex close_mutex_;
  Thread thread_;  // guarded by close_mutex_ once started
};

void StreamServer::Loop::Run(const std::stop_token& stop) {
  std::array<Poller::Event, 64> events;
  Time next_tick = clock_.Now();
  MOONPOOL_CHECK(poller_.Add(waker_.fd(), kWakerToken, {.read = true}).ok());
  MOONPOOL_CHECK(poller_.Add(listener_.get(), kListenerToken, {.read = true}).ok());
  while (!stop.stop_requested()) {
    Time now = clock_.Now();
    int timeout_ms = TimeoutMs(now);
    if (options_.on_tick) timeout_ms = std::min(timeout_ms, MillisUntil(now, next_tick, 60'000));
    const size_t count = poller_.Wait(events, timeout_ms);
    now = clock_.Now();
    for (const Poller::Event& event : std::span(events).first(count)) {
      if (event.token == kListenerToken) {
        AcceptWaiting(now);
      } else if (event.token == kWakerToken) {
        waker_.Drain();
      } else if (Connection* connection = Find(event.token)) {
        if (event.readable || event.broken) Read(*connection);
        if (event.broken) Abandon(*connection);
        Touch(*connection);
      }
    }
    DrainOutbox();
    for (const uint64_t id : std::exchange(touched_, {})) {
      if (Connection* connection = Find(id)) Update(*connection, now);
    }
    Expire(now);
    if (options_.on_tick && now >= next_tick) {
      options_.on_tick(now);
      next_tick = After(now, options_.tick);
    }
    Publish();
  }
  while (!connections_.empty()) Drop(*connections_.begin()->second, "the server closes");
  Publish();
}

int StreamServer::Loop::TimeoutMs(Time now) const {
  Time first = accept_again_;
  for (size_t i = 0; i < kSessionPhases; ++i) {
    if (phases_[i].empty()) continue;
    first = std::min(first, After(phases_[i].front()->phase_since, timeouts_[i]));
  }
  return MillisUntil(now, first, 60'000);
}

// Closes the connection that is the least loss; false if each is of use.
bool StreamServer::Loop::MakeRoom() {
  for (const SessionPhase phase : {SessionPhase::kClosing, SessionPhase::kHandshake}) {
    auto& list = phases_[Index(phase)];
    if (list.empty()) continue;
    ++counts_.connections_evicted;
    Drop(*list.front(), "makes room for a new connection");
    return true;
  }
  return false;
}

void StreamServer::Loop::AcceptWaiting(Time now) {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    auto fd = Accept(listener_.get());
    if (fd.ok()) {
      Admit(std::move(fd).value(), now);
      continue;
    }
    if (fd.code() == Code::kExhausted && !MakeRoom()) {
      if (log_ != nullptr) log_->Warning("accept paused", {{"cause", fd.status().message()}});
      poller_.Modify(listener_.get(), kListenerToken, {});
      accept_again_ = After(now, kAcceptPause);
    }
    return;
  }
}

void StreamServer::Loop::Admit(UniqueFd fd, Time now) {
  ++counts_.connections_accepted;
  if (connections_.size() >= options_.connections_max && !MakeRoom()) {
    ++counts_.connections_rejected;
    return;
  }
  SetNoDelay(fd.get());
  auto connection = std::make_unique<Connection>();
  connection->id = next_id_++;
  if (!poller_.Add(fd.get(), connection->id, connection->interest).ok()) {
    ++counts_.connections_rejected;
    return;
  }
  connection->session = make_session_(
      SessionContext{connection->id, PeerEndpoint(fd.get()), connection->stop.get_token()});
  connection->fd = std::move(fd);
  connection->phase_since = now;
  auto& list = phases_[Index(connection->phase)];
  connection->place = list.insert(list.end(), connection.get());
  connections_.emplace(connection->id, std::move(connection));
}

void StreamServer::Loop::Read(Connection& connection) {
  const bool discard = connection.phase == SessionPhase::kClosing;
  for (int i = 0; i < kReadsPerEvent && !connection.eof; ++i) {
    if (!discard && !connection.wants_bytes()) break;
    const ssize_t got = ::recv(connection.fd.get(), scratch_.data(), scratch_.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      connection.eof = true;
      const bool stays = got == 0 && !discard && connection.session->StaysAfterEof();
      if (!stays) Abandon(connection);
      break;
    }
    if (discard) continue;
    connection.in.append(scratch_.data(), static_cast<size_t>(got));
    Process(connection);
    if (static_cast<size_t>(got) < scratch_.size()) break;
  }
}

// The peer neither sends nor reads any more; Update drops the connection.
void StreamServer::Loop::Abandon(Connection& connection) {
  connection.eof = true;
  connection.ending = true;
  connection.out.clear();
  connection.out_sent = 0;
}

void StreamServer::Loop::Process(Connection& connection) {
  if (connection.ending || connection.in.empty()) return;
  const auto consumed = connection.session->OnBytes(connection.in);
  if (!consumed.ok()) {
    ++counts_.connections_rejected;
    if (log_ != nullptr) {
      log_->Debug("connection rejected", {{"server", options_.thread_name},
                                          {"peer", PeerName(connection.fd.get())},
                                          {"cause", consumed.status().message()}});
    }
    connection.ending = true;
    connection.in = std::string();
    return;
  }
  if (*consumed == 0) return;
  connection.progress = true;
  connection.in.erase(0, *consumed);
  if (connection.in.empty() && connection.in.capacity() > kKeptBytes) {
    connection.in = std::string();
  }
}

// False: the peer is gone.
bool StreamServer::Loop::Flush(Connection& connection) {
  while (connection.pending()) {
    const ssize_t sent =
        ::send(connection.fd.get(), connection.out.data() + connection.out_sent,
               connection.out.size() - connection.out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    connection.out_sent += static_cast<size_t>(sent);
    connection.progress = true;
  }
  if (connection.out.capacity() > kKeptBytes) {
    connection.out = std::string();
  } else {
    connection.out.clear();
  }
  connection.out_sent = 0;
  return true;
}

void StreamServer::Loop::DrainOutbox() {
  while (true) {  // a reply may let a session take up its next request, which may answer at once
    std::vector<std::pair<uint64_t, Output>> outputs;
    {
      MutexLock lock(mutex_);
      outputs.swap(outbox_);
    }
    if (outputs.empty()) return;
    for (auto& [id, output] : outputs) {
      Connection* connection = Find(id);
      if (connection == nullptr || connection->phase == SessionPhase::kClosing) continue;
      Touch(*connection);
      if (connection->out.empty()) {
        connection->out = std::move(output.bytes);
      } else {
        connection->out += output.bytes;
      }
      if (output.reply) {
        connection->session->OnReply();
        connection->progress = true;
        Process(*connection);
      }
      if (output.then_close) connection->ending = true;
    }
  }
}

void StreamServer::Loop::Touch(Connection& connection) {
  if (std::exchange(connection.touched, true)) return;
  touched_.push_back(connection.id);
}

void StreamServer::Loop::Enter(Connection& connection, SessionPhase phase, Time now) {
  auto& to = phases_[Index(phase)];
  to.splice(to.end(), phases_[Index(connection.phase)], connection.place);
  connection.phase = phase;
  connection.phase_since = now;
}

void StreamServer::Loop::Update(Connection& connection, Time now) {
  connection.touched = false;
  const bool progress = std::exchange(connection.progress, false);
  if (!Flush(connection)) return Drop(connection, "the peer is gone");
  const bool sent_some = std::exchange(connection.progress, false);
  if (connection.eof && connection.phase == SessionPhase::kClosing) {
    return Drop(connection, "done");
  }
  const bool busy = connection.session->phase() == SessionPhase::kBusy;
  if (!connection.pending() && connection.eof && !(busy && !connection.ending)) {
    return Drop(connection, "closed by the peer");
  }
  const size_t bytes = connection.in.size() + connection.out.size();
  buffered_ += bytes - connection.accounted;
  connection.accounted = bytes;
  if (buffered_ > options_.buffered_bytes_max) {
    ++counts_.connections_rejected;
    return Drop(connection, "too many bytes are buffered");
  }
  if (connection.ending && !connection.pending()) {
    if (connection.phase != SessionPhase::kClosing) {
      ::shutdown(connection.fd.get(), SHUT_WR);
      Enter(connection, SessionPhase::kClosing, now);
    }
  } else {
    const SessionPhase phase =
        connection.pending() ? SessionPhase::kSending : connection.session->phase();
    if (phase != connection.phase || progress || sent_some) Enter(connection, phase, now);
  }
  const bool lingers = connection.phase == SessionPhase::kClosing;
  const Poller::Interest wanted{.read = !connection.eof && (lingers || connection.wants_bytes()),
                                .write = connection.pending()};
  if (wanted.read != connection.interest.read || wanted.write != connection.interest.write) {
    connection.interest = wanted;
    poller_.Modify(connection.fd.get(), connection.id, wanted);
  }
}

void StreamServer::Loop::Expire(Time now) {
  if (accept_again_ <= now) {
    accept_again_ = kNever;
    poller_.Modify(listener_.get(), kListenerToken, {.read = true});
  }
  for (size_t i = 0; i < kSessionPhases; ++i) {
    while (!phases_[i].empty() && After(phases_[i].front()->phase_since, timeouts_[i]) <= now) {
      const auto phase = static_cast<SessionPhase>(i);
      const bool quiet = phase == SessionPhase::kIdle || phase == SessionPhase::kClosing;
      if (!quiet) ++counts_.connections_rejected;
      Drop(*phases_[i].front(), "out of time");
    }
  }
}

void StreamServer::Loop::Drop(Connection& connection, std::string_view cause) {
  if (log_ != nullptr && log_->enabled(LogLevel::kDebug)) {
    log_->Debug("connection closed", {{"server", options_.thread_name},
                                      {"peer", PeerName(connection.fd.get())},
                                      {"cause", cause}});
  }
  connection.stop.request_stop();
  poller_.Remove(connection.fd.get());
  buffered_ -= connection.accounted;
  phases_[Index(connection.phase)].erase(connection.place);
  connections_.erase(connection.id);
}

void StreamServer::Loop::Publish() {
  counts_.connections_open = connections_.size();
  MutexLock lock(mutex_);
  metrics_ = counts_;
}

Result<std::unique_ptr<StreamServer>> StreamServer::Create(const Clock& clock, Logger* log,
                                                           const StreamServerOptions& options) {
  MOONPOOL_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options.bind_host, options.port));
  MOONPOOL_ASSIGN_OR_RETURN(Waker waker, Waker::Create());
  MOONPOOL_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  return std::make_unique<StreamServer>(std::make_unique<Loop>(
      clock, log, options, Loop::Parts{std::move(listener), std::move(waker), std::move(poller)}));
}

StreamServer::StreamServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
StreamServer::~StreamServer() { Close(); }
void StreamServer::Start(MakeSession make_session) { loop_->Start(std::move(make_session)); }
uint16_t StreamServer::port() const { return loop_->port(); }
void StreamServer::Send(uint64_t id, Output output) { loop_->Send(id, std::move(output)); }
void StreamServer::Close() { loop_->Close(); }
StreamServerMetrics StreamServer::Metrics() const { return loop_->Metrics(); }

}  // namespace moonpool::net
