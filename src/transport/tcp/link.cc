#include "transport/tcp/link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/str.h"
#include "net/socket.h"

namespace moonpool::tcp {

using transport::Phase;
using transport::Slice;

namespace {

// A connect or a handshake that takes longer has failed.
constexpr Duration kConnectMax = std::chrono::seconds(5);
// A connection on which nothing moves for so long while given-up slices wait on it is broken.
constexpr Duration kStallMax = std::chrono::milliseconds(500);
// A cancelled write that its owner has not answered is fenced, which breaks the connection for all
// its slices: only once nothing has moved on it for kCancelMax, or when kCancelStallMax is over.
constexpr Duration kCancelMax = std::chrono::milliseconds(20);
constexpr Duration kCancelStallMax = std::chrono::seconds(1);
// Between attempts to reach an owner that has writes of ours.
constexpr Duration kBackoffMin = std::chrono::milliseconds(5);
constexpr Duration kBackoffMax = std::chrono::milliseconds(500);
// How long a connection that moved counts as alive.
constexpr Duration kFreshFor = std::chrono::milliseconds(1);
constexpr size_t kHeadsBytes = 64 << 10;

}  // namespace

void* LaneContext::Zeros() {
  if (zeros.empty()) zeros.resize(kSliceBytes);
  return zeros.data();
}

void* LaneContext::Sink() {
  if (sink.empty()) sink.resize(kSliceBytes);
  return sink.data();
}

Link::Link(LaneContext& lane, std::shared_ptr<PeerState> peer)
    : lane_(lane), peer_(std::move(peer)), heads_(kHeadsBytes) {}

Link::~Link() { CloseSocket(); }

// ---- lists of flights

void Link::Push(List& list, uint32_t flight) {
  flights_[flight].next = kNone;
  if (list.empty()) {
    list.head = flight;
  } else {
    flights_[list.tail].next = flight;
  }
  list.tail = flight;
}

uint32_t Link::Pop(List& list) {
  const uint32_t flight = list.head;
  list.head = flights_[flight].next;
  if (list.head == kNone) list.tail = kNone;
  return flight;
}

// Frees the flights of the list for which `keep` is false; keep the order of the others.
template <typename Keep>
void Link::Filter(List& list, Keep keep) {
  List kept;
  while (!list.empty()) {
    const uint32_t flight = Pop(list);
    if (keep(flights_[flight])) {
      Push(kept, flight);
    } else {
      Free(flight);
    }
  }
  list = kept;
}

uint32_t Link::Take() {
  ++used_;
  if (!free_.empty()) return Pop(free_);
  flights_.emplace_back();
  return static_cast<uint32_t>(flights_.size() - 1);
}

void Link::Free(uint32_t flight) {
  Flight& gone = flights_[flight];
  if (gone.finished) --finished_;
  bytes_ -= gone.slice.bytes;
  --used_;
  gone = Flight{};
  Push(free_, flight);
}

void Link::Complete(Flight& flight, Code code, Phase phase) {
  MOONPOOL_CHECK(!flight.finished);
  flight.finished = true;
  ++finished_;
  lane_.done.push_back({flight.slice.cookie, code, code == Code::kOk ? Phase::kNone : phase});
}

void Link::CompleteAll(List& list, Code code, Phase phase) {
  Filter(list, [&](Flight& flight) {
    if (!flight.finished) Complete(flight, flight.cancelled ? Code::kCancelled : code, phase);
    return false;
  });
}

void Link::SetError(Phase phase, const Status& status) {
  peer_->SetError(status.WithContext(Str("peer ", peer_->name, " at ", peer_->endpoint.ToString(),
                                         ", tcp, ", transport::PhaseName(phase))));
}

// ---- what the lane calls

size_t Link::Post(std::span<const Slice> slices) {
  const Time now = lane_.shared.env.clock.Now();
  if (used_ == 0) {
    // One that answered just now is not asked again: each request would pay for it.
    const bool fresh = now - last_progress_ < kFreshFor;
    last_progress_ = now;
    if (state_ == State::kReady && !fresh && !StillAlive()) CloseSocket();
  }
  size_t accepted = 0;
  for (const Slice& slice : slices) {
    if (used_ >= kFlightsMax || (used_ > 0 && bytes_ + slice.bytes > kFlightBytesMax)) break;
    ++accepted;
    if (!ValidSlice(slice)) {
      lane_.done.push_back({slice.cookie, Code::kInvalidArgument, Phase::kData});
      continue;
    }
    const uint32_t flight = Take();
    flights_[flight].slice = slice;
    bytes_ += slice.bytes;
    Push(queued_, flight);
    Wake(slice.deadline);
  }
  detached_ = false;
  if (queued_.empty()) return accepted;
  if (state_ == State::kIdle && fencing_.empty()) Open(now);
  if (state_ == State::kReady && !blocked_) Send(now, kStepBytes);
  return accepted;
}

bool Link::Progress(Time now, bool readable, bool writable) {
  switch (state_) {
    case State::kIdle:
      return false;
    case State::kConnecting: {
      pollfd waits{fd_.get(), POLLOUT, 0};
      if (poll(&waits, 1, 0) <= 0) return false;
      FinishConnect(now);
      return true;
    }
    case State::kGreeting:
      return Greet(now);
    case State::kReady:
      break;
  }
  // Fair over the links of a lane: so much for each before the next has its turn.
  constexpr size_t kBudget = 1 << 20;
  bool moved = false;
  runnable_ = false;
  if (writable) blocked_ = false;
  if (readable && Receive(now, kBudget)) moved = true;
  if (state_ == State::kReady && !blocked_ && Send(now, kBudget)) moved = true;
  return moved;
}

bool Link::Cancel(uint64_t cookie, Time now) {
  const auto wanted = [&](const Flight& flight) {
    return flight.slice.cookie == cookie && !flight.finished;
  };
  bool found = false;
  Filter(queued_, [&](Flight& flight) {
    if (!wanted(flight)) return true;
    found = true;
    Complete(flight, Code::kCancelled, Phase::kData);
    return false;
  });
  for (uint32_t i = reads_.head; i != kNone && !found; i = flights_[i].next) {
    if (!wanted(flights_[i])) continue;
    found = true;
    Complete(flights_[i], Code::kCancelled, Phase::kData);
    if (receiving_ && i == reads_.head) AbandonRead(Code::kCancelled);
    Wake(now + kStallMax);
  }
  for (const List* list : {&writes_, &fencing_}) {
    for (uint32_t i = list->head; i != kNone && !found; i = flights_[i].next) {
      if (!wanted(flights_[i])) continue;
      found = true;
      flights_[i].cancelled = true;
      flights_[i].cancelled_at = now;
      Wake(now + kCancelMax);
    }
  }
  return found;
}

void Link::Detach(Time now) {
  detached_ = true;
  CompleteAll(queued_, Code::kCancelled, Phase::kData);
  for (const List* list : {&writes_, &fencing_}) {
    for (uint32_t i = list->head; i != kNone; i = flights_[i].next) flights_[i].cancelled = true;
  }
  for (uint32_t i = reads_.head; i != kNone; i = flights_[i].next) {
    if (!flights_[i].finished) Complete(flights_[i], Code::kCancelled, Phase::kData);
  }
  if (!fencing_.empty()) return;  // a connection that fences is under way
  if (state_ != State::kIdle) Break(Status(Code::kCancelled, "closed on this side"), now);
}

// ---- the connection

void Link::Open(Time now) {
  if (fencing_.empty()) {
    if (auto spare = peer_->TakeSpare()) {
      Adopt(std::move(*spare));
      if (StillAlive()) return;
      CloseSocket();
    }
  }
  StartConnect(now);
}

void Link::StartConnect(Time now) {
  next_attempt_ = kNever;
  asked_ = now;
  const net::Endpoint& to = peer_->endpoint;
  fd_.Reset(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_.valid()) {
    const Status failure(Code::kExhausted, Str("socket: ", net::ErrnoText(errno)));
    ConnectFailed(failure, Phase::kConnect, false, now);
    return;
  }
  TuneSocket(lane_.shared, fd_.get());
  const int result = connect(fd_.get(), to.data(), to.size());
  if (result != 0 && errno != EINPROGRESS) {
    const int error = errno;
    ConnectFailed(net::ConnectFailure(to, error), Phase::kConnect, ProcessGone(error), now);
    return;
  }
  state_ = State::kConnecting;
  Counters::Add(lane_.shared.counters.connections_open);
  epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.ptr = this}};
  armed_ = true;
  if (epoll_ctl(lane_.epoll, EPOLL_CTL_ADD, fd_.get(), &event) != 0) {
    const Status failure(Code::kExhausted, Str("epoll_ctl: ", net::ErrnoText(errno)));
    ConnectFailed(failure, Phase::kConnect, false, now);
    return;
  }
  Wake(now + kConnectMax);
}

// Whether a failed connect proves that the process is no more. Only this host's own kernel is
// believed: from elsewhere a firewall or a balancer may refuse while the owner still stores.
bool Link::ProcessGone(int error) const { return error == ECONNREFUSED && clock_.same(); }

void Link::FinishConnect(Time now) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    ConnectFailed(net::ConnectFailure(peer_->endpoint, error), Phase::kConnect, ProcessGone(error),
                  now);
    return;
  }
  TuneConnected(fd_.get());
  Hello hello;
  hello.owner = peer_->id;
  hello.initiator = lane_.shared.env.self;
  hello.fence = fencing_.empty() ? 0 : fence_;
  std::array<std::byte, kHelloBytes> out;
  EncodeHello(hello, out);
  asked_ = now;
  // The buffer of a new connection is empty: it takes a hello whole.
  const ssize_t n = send(fd_.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n != static_cast<ssize_t>(out.size())) {
    ConnectFailed(Status(Code::kUnavailable, Str("send: ", net::ErrnoText(n < 0 ? errno : EAGAIN))),
                  Phase::kHandshake, false, now);
    return;
  }
  state_ = State::kGreeting;
  replies_bytes_ = 0;
  Arm(false);
  Greet(now);
}

// Receives the welcome; true if anything happened.
bool Link::Greet(Time now) {
  static_assert(kWelcomeBytes <= sizeof(replies_));
  const ssize_t n = recv(fd_.get(), replies_.data() + replies_bytes_,
                         kWelcomeBytes - replies_bytes_, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    const std::string cause = n == 0 ? "the peer closed the connection" : net::ErrnoText(errno);
    ConnectFailed(Status(Code::kUnavailable, cause), Phase::kHandshake, false, now);
    return true;
  }
  replies_bytes_ += static_cast<size_t>(n);
  if (replies_bytes_ < kWelcomeBytes) return true;
  replies_bytes_ = 0;
  const Time received = lane_.shared.env.clock.Now();
  auto welcome = DecodeWelcome(std::span(replies_).first<kWelcomeBytes>());
  const Status verdict = welcome.ok() ? CheckWelcome(*welcome, peer_->id) : welcome.status();
  if (!verdict.ok()) {
    ConnectFailed(verdict, Phase::kHandshake, verdict.code() == Code::kStale, now);
    return true;
  }
  if (!fencing_.empty() && welcome->fenced != fence_) {
    ConnectFailed(Status(Code::kCorrupt, "the peer did not stop an earlier connection"),
                  Phase::kHandshake, false, now);
    return true;
  }
  CompleteAll(fencing_, Code::kUnavailable, Phase::kData);
  connection_ = welcome->connection;
  clock_.Begin(*welcome, lane_.shared.boot, asked_, received);
  state_ = State::kReady;
  backoff_ = Duration(0);
  last_progress_ = received;
  if (detached_) {
    CloseSocket();
  } else {
    Send(now, kStepBytes);
  }
  return true;
}

void Link::Adopt(OpenConnection connection) {
  fd_ = std::move(connection.fd);
  connection_ = connection.id;
  clock_ = connection.clock;
  state_ = State::kReady;
  armed_ = false;
  last_progress_ = lane_.shared.env.clock.Now();
  epoll_event event{.events = EPOLLIN, .data = {.ptr = this}};
  // If the kernel refuses, StillAlive() is asked next and Progress polls while slices wait.
  if (epoll_ctl(lane_.epoll, EPOLL_CTL_ADD, fd_.get(), &event) != 0) CloseSocket();
}

void Link::ConnectFailed(const Status& status, Phase phase, bool process_gone, Time now) {
  SetError(phase, status);
  CloseSocket();
  const Code code = status.code();
  CompleteAll(queued_, code, phase);
  if (process_gone) CompleteAll(fencing_, code, phase);
  if (fencing_.empty()) return;
  backoff_ = std::clamp(2 * backoff_, kBackoffMin, kBackoffMax);
  next_attempt_ = now + backoff_;
  Wake(next_attempt_);
}

// The connection is no more: what is begun ends, or waits for the fence.
void Link::Break(const Status& status, Time now) {
  if (state_ != State::kReady) {
    ConnectFailed(status, Phase::kConnect, false, now);
    return;
  }
  SetError(Phase::kData, status);
  CloseSocket();
  CompleteAll(reads_, Code::kUnavailable, Phase::kData);
  while (!writes_.empty()) {
    const uint32_t flight = Pop(writes_);
    if (flights_[flight].finished) {
      Free(flight);
    } else {
      Push(fencing_, flight);
    }
  }
  if (!fencing_.empty()) fence_ = connection_;
  backoff_ = Duration(0);
  // Not at once and from here: Post and Progress are on the stack.
  if (!fencing_.empty() || !queued_.empty()) next_attempt_ = now;
  Wake(next_attempt_);
}

void Link::CloseSocket() {
  if (fd_.valid() && state_ != State::kIdle) {
    Counters::Subtract(lane_.shared.counters.connections_open);
  }
  CloseWatched(lane_.epoll, fd_);
  state_ = State::kIdle;
  armed_ = blocked_ = runnable_ = false;
  out_.Clear();
  outgoing_.clear();
  in_.Clear();
  receiving_ = narrow_send_ = trailer_due_ = false;
  replies_bytes_ = 0;
}

void Link::Arm(bool write) {
  if (armed_ == write) return;
  armed_ = write;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = this}};
  if (write) event.events |= EPOLLOUT;
  epoll_ctl(lane_.epoll, EPOLL_CTL_MOD, fd_.get(), &event);
}

// False when the peer has closed an idle connection meanwhile (or says what nobody asked).
bool Link::StillAlive() const {
  if (!fd_.valid()) return false;
  char byte = 0;
  return recv(fd_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

// ---- time

bool Link::Stalled(Time now) const { return now - last_progress_ >= kStallMax; }

void Link::OnTime(Time now) {
  next_time_ = kNever;
  ExpireQueued(now);
  ExpireBegun(now);
  if (state_ == State::kConnecting || state_ == State::kGreeting) {
    if (now - asked_ >= kConnectMax) {
      const bool connecting = state_ == State::kConnecting;
      ConnectFailed(Status(Code::kUnavailable,
                           Str("no answer within ", kConnectMax.count() / 1'000'000, " ms")),
                    connecting ? Phase::kConnect : Phase::kHandshake, false, now);
    } else {
      Wake(asked_ + kConnectMax);
    }
  }
  if (state_ == State::kReady && finished_ > 0) {
    if (Stalled(now)) {
      Break(Status(Code::kTimedOut, "the peer does not answer"), now);
    } else {
      Wake(last_progress_ + kStallMax);
    }
  }
  if (state_ == State::kIdle && next_attempt_ <= now) {
    next_attempt_ = kNever;
    if (!fencing_.empty() || !queued_.empty()) Open(now);
    if (state_ == State::kReady && !queued_.empty()) Send(now, kStepBytes);
  } else if (state_ == State::kIdle) {
    Wake(next_attempt_);
  }
}

void Link::ExpireQueued(Time now) {
  const Phase phase = state_ == State::kReady      ? Phase::kData
                      : state_ == State::kGreeting ? Phase::kHandshake
                                                   : Phase::kConnect;
  bool expired = false;
  for (uint32_t i = queued_.head; i != kNone; i = flights_[i].next) {
    expired = expired || flights_[i].slice.deadline <= now;
    Wake(flights_[i].slice.deadline);
  }
  if (!expired) return;
  Filter(queued_, [&](Flight& flight) {
    if (flight.slice.deadline > now) return true;
    Complete(flight, Code::kTimedOut, phase);
    return false;
  });
}

void Link::ExpireBegun(Time now) {
  for (uint32_t i = reads_.head; i != kNone; i = flights_[i].next) {
    Flight& flight = flights_[i];
    if (flight.finished) continue;
    if (flight.slice.deadline > now) {
      Wake(flight.slice.deadline);
      continue;
    }
    Complete(flight, Code::kTimedOut, Phase::kData);
    if (receiving_ && i == reads_.head) AbandonRead(Code::kTimedOut);
  }
  bool overdue = false;  // a cancelled write that only a fence ends
  for (uint32_t i = writes_.head; i != kNone; i = flights_[i].next) {
    Flight& flight = flights_[i];
    if (flight.finished) continue;
    const Time certain = After(flight.slice.deadline, kMargin);
    if (certain <= now) {
      PadOutgoing(i);
      Complete(flight, flight.cancelled ? Code::kCancelled : Code::kTimedOut, Phase::kData);
      continue;
    }
    Wake(certain);
    if (!flight.cancelled) continue;
    const Time due = std::min(std::max(flight.cancelled_at, last_progress_) + kCancelMax,
                              flight.cancelled_at + kCancelStallMax);
    if (due <= now) {
      overdue = true;
    } else {
      Wake(due);
    }
  }
  Filter(fencing_, [&](Flight& flight) {
    const Time certain = After(flight.slice.deadline, kMargin);
    Wake(certain);
    if (certain > now) return true;
    Complete(flight, flight.cancelled ? Code::kCancelled : Code::kTimedOut, Phase::kData);
    return false;
  });
  if (overdue) Break(Status(Code::kCancelled, "a cancelled write was not answered"), now);
}

}  // namespace moonpool::tcp
