#include "transport/tcp/peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "base/str.h"
#include "net/socket.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {
namespace {

using transport::Phase;

Status InPhase(const PeerState& peer, Phase phase, const Status& status) {
  return status.WithContext(Str("peer ", peer.name, " at ", peer.endpoint.ToString(), ", tcp, ",
                                transport::PhaseName(phase)));
}

Status SendAll(const Clock& clock, int fd, std::span<const std::byte> bytes,
               const net::Until& until) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      MOONPOOL_RETURN_IF_ERROR(net::WaitFor(clock, fd, POLLOUT, until));
    } else if (n < 0 && errno != EINTR) {
      return Status(Code::kUnavailable, net::ErrnoText(errno));
    }
  }
  return Status::Ok();
}

Status ReceiveAll(const Clock& clock, int fd, std::span<std::byte> bytes, const net::Until& until) {
  while (!bytes.empty()) {
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return Status(Code::kUnavailable, "the peer closed the connection");
    } else if (errno == EAGAIN) {
      MOONPOOL_RETURN_IF_ERROR(net::WaitFor(clock, fd, POLLIN, until));
    } else if (errno != EINTR) {
      return Status(Code::kUnavailable, net::ErrnoText(errno));
    }
  }
  return Status::Ok();
}

}  // namespace

void PeerState::SetError(Status status) {
  MutexLock lock(mutex_);
  last_error_ = std::move(status);
}

Status PeerState::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

void PeerState::PutSpare(OpenConnection connection) {
  MutexLock lock(mutex_);
  spare_ = std::move(connection);
}

std::optional<OpenConnection> PeerState::TakeSpare() {
  MutexLock lock(mutex_);
  return std::exchange(spare_, std::nullopt);
}

Peer::~Peer() {
  if (state_->TakeSpare()) Counters::Subtract(shared_.counters.connections_open);
  state_->closed.store(true, std::memory_order_release);
  shared_.peers_closed.fetch_add(1, std::memory_order_release);
}

Status CheckWelcome(const Welcome& welcome, transport::NodeId expected) {
  if (welcome.owner != expected) {
    return Status(Code::kStale, "another process answers there than the one meant");
  }
  if (welcome.code == Code::kOk) return Status::Ok();
  if (welcome.code == Code::kUnsupported) {
    return Status(Code::kUnsupported,
                  Str("peer speaks versions ", welcome.version_min, "-", welcome.version_max,
                      " of the tcp transport, this process ", kVersionMin, "-", kVersionMax));
  }
  return Status(welcome.code, Str("the peer refused: ", CodeName(welcome.code)));
}

Status OpenAndCheck(Shared& shared, PeerState& peer, Time deadline) {
  const Clock& clock = shared.env.clock;
  const Status late(Code::kTimedOut, "the deadline has passed");
  if (clock.Now() >= deadline) return InPhase(peer, Phase::kConnect, late);
  auto connected = net::Connect(clock, std::span(&peer.endpoint, 1), deadline, shared.closing_fd());
  if (!connected.ok()) return InPhase(peer, Phase::kConnect, connected.status());
  OpenConnection connection;
  connection.fd = std::move(connected).value();
  TuneSocket(shared, connection.fd.get());
  TuneConnected(connection.fd.get());

  Hello hello;
  hello.owner = peer.id;
  hello.initiator = shared.env.self;
  std::array<std::byte, kHelloBytes> out;
  EncodeHello(hello, out);
  const Time asked = clock.Now();
  std::array<std::byte, kWelcomeBytes> in;
  const net::Until until(deadline, shared.closing_fd());
  Status status = SendAll(clock, connection.fd.get(), out, until);
  if (status.ok()) status = ReceiveAll(clock, connection.fd.get(), in, until);
  if (!status.ok()) return InPhase(peer, Phase::kHandshake, status);
  const Time received = clock.Now();
  auto welcome = DecodeWelcome(in);
  if (!welcome.ok()) return InPhase(peer, Phase::kHandshake, welcome.status());
  status = CheckWelcome(*welcome, peer.id);
  if (!status.ok()) return InPhase(peer, Phase::kHandshake, status);

  connection.id = welcome->connection;
  connection.clock.Begin(*welcome, shared.boot, asked, received);
  Counters::Add(shared.counters.connections_open);
  peer.PutSpare(std::move(connection));
  return Status::Ok();
}

}  // namespace moonpool::tcp
