#include "transport/local/peer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/str.h"
#include "transport/local/socket.h"

namespace moonpool::local {
namespace {

using transport::PhaseName;

// A backlog of thousands is full: look again after this.
constexpr int kConnectAgainMs = 5;

Status Context(Status status, std::string_view phase) { return status.WithContext(phase); }

Status CheckHost(const Self& self, const Address& address) {
  if (address.host.boot != self.host.boot) {
    return Status(Code::kUnsupported, "resolve: another host (its boot id differs)");
  }
  if (address.host.net_namespace != self.host.net_namespace) {
    return Status(Code::kUnsupported, "resolve: another network namespace of this host");
  }
  return Status::Ok();
}

Result<UniqueFd> ConnectUntil(const Token& name, int wake, Time deadline) {
  while (true) {
    int error = 0;
    UniqueFd fd = Connect(name, &error);
    if (fd.valid()) return fd;
    if (error == ECONNREFUSED) {
      return Status(Code::kUnavailable, "connect: nobody listens there: the process has ended");
    }
    if (error != EAGAIN) {
      return Status(Code::kUnavailable, Str("connect: ", std::strerror(error)));
    }
    const Time now = BootClock::now();
    const Time again = std::min(deadline, now + std::chrono::milliseconds(kConnectAgainMs));
    if (now >= deadline) return Status(Code::kTimedOut, "connect: its backlog is full");
    const Status waited = WaitReadable(wake, wake, again);  // nothing but the time or closing
    if (waited.code() == Code::kCancelled) return Context(waited, "connect");
  }
}

struct Answer {
  Welcome welcome;
  UniqueFd board;
  Time sent;
  Time received;
};

Result<Answer> Greet(int socket, const Hello& hello, int wake, Time deadline) {
  Answer answer;
  answer.sent = BootClock::now();
  if (const int error = Send(socket, EncodeHello(hello)); error != 0) {
    return Status(Code::kUnavailable, Str("handshake: ", std::strerror(error)));
  }
  if (Status waited = WaitReadable(socket, wake, deadline); !waited.ok()) {
    return Context(waited, "handshake");
  }
  std::array<char, 1024> buffer;
  Packet packet = Receive(socket, buffer);
  answer.received = BootClock::now();
  if (packet.error != 0 || packet.bytes.empty()) {
    return Status(
        Code::kUnavailable,
        Str("handshake: ", packet.error != 0 ? std::strerror(packet.error) : "the peer closed it"));
  }
  if (!DecodeWelcome(packet.bytes, &answer.welcome)) {
    return Status(Code::kUnavailable, "handshake: not the answer of this transport");
  }
  answer.board = std::move(packet.fd);
  return answer;
}

// Deadlines travel as numbers of one clock.
bool SameClock(const Answer& answer) {
  const Time theirs{Duration(answer.welcome.clock)};
  return answer.sent <= theirs && theirs <= answer.received;
}

}  // namespace

Status CheckWelcome(const Welcome& welcome, const transport::NodeId& expected) {
  if (welcome.code != Code::kOk) {
    // Only codes that the contract knows here.
    const bool known = welcome.code == Code::kUnsupported || welcome.code == Code::kStale;
    return Status(known ? welcome.code : Code::kUnavailable,
                  Str("handshake: refused: ", welcome.reason));
  }
  if (welcome.version != kVersion) {
    return Status(Code::kUnsupported,
                  Str("handshake: version ", welcome.version, ", this is ", kVersion));
  }
  if (welcome.id != expected) {
    return Status(Code::kStale, "handshake: another process answers under this address");
  }
  return Status::Ok();
}

Result<std::shared_ptr<PeerState>> OpenPeerState(const Self& self,
                                                 const transport::PeerOptions& options, int wake,
                                                 Time deadline) {
  MOONPOOL_ASSIGN_OR_RETURN(const Address address, DecodeAddress(options.address));
  MOONPOOL_RETURN_IF_ERROR(CheckHost(self, address));
  MOONPOOL_ASSIGN_OR_RETURN(const UniqueFd socket, ConnectUntil(address.socket, wake, deadline));
  PeerProcess process = ProcessAt(socket.get());
  Hello hello;
  hello.wants_board = true;
  hello.from = self.id;
  hello.to = options.id;
  hello.cell = self.cell;
  MOONPOOL_ASSIGN_OR_RETURN(const Answer answer, Greet(socket.get(), hello, wake, deadline));
  MOONPOOL_RETURN_IF_ERROR(CheckWelcome(answer.welcome, options.id));
  if (!SameClock(answer)) {
    return Status(Code::kUnsupported, "handshake: its clock differs (another time namespace)");
  }
  PeerState::Fixed fixed;
  fixed.name = options.name;
  fixed.address = address;
  fixed.pidfd = std::move(process.pidfd);
  fixed.origin.pid = process.pid;
  fixed.origin.cell = answer.welcome.cell;
  fixed.origin.cma_error = ProbeCell(process.pid, answer.welcome.cell);
  auto board = BoardView::Map(answer.board.get());
  if (!board.ok()) return board.status().WithContext("handshake");
  fixed.board = *std::move(board);
  if (!fixed.origin.cma() && !fixed.board->AnyArena()) {
    return Status(Code::kUnsupported, Str("handshake: process_vm_readv of process ", process.pid,
                                          ": ", std::strerror(fixed.origin.cma_error),
                                          ", and it shares no memory allocated by the engine"));
  }
  const int error = fixed.origin.cma() ? answer.welcome.cma_error : fixed.origin.cma_error;
  const std::string_view who = fixed.origin.cma() ? "its" : "our";
  auto state = std::make_shared<PeerState>(std::move(fixed));
  if (error != 0) {
    state->Fail(Code::kUnsupported, transport::Phase::kHandshake,
                Str(who, " process_vm_readv: ", std::strerror(error),
                    "; only memory allocated by the engine can be moved"));
  }
  return state;
}

void PeerState::Fail(Code code, transport::Phase phase, std::string_view cause) {
  Status status(code, Str("local ", fixed_.name, ": ", PhaseName(phase), ": ", cause));
  MutexLock lock(mutex_);
  last_error_ = std::move(status);
}

Status PeerState::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

std::shared_ptr<const Mapping> PeerState::Find(uint32_t arena) const {
  MutexLock lock(mutex_);
  const auto it = arenas_.find(arena);
  return it == arenas_.end() ? nullptr : it->second.lock();
}

Result<std::shared_ptr<const Mapping>> PeerState::Map(uint32_t arena, int fd, uint64_t size) {
  if (auto found = Find(arena)) return found;
  auto mapping = Mapping::Map(fd, size);
  if (!mapping.ok()) return mapping;
  MutexLock lock(mutex_);
  std::erase_if(arenas_, [](const auto& entry) { return entry.second.expired(); });
  auto& kept = arenas_[arena];
  if (auto found = kept.lock()) return found;  // another lane was faster
  kept = *mapping;
  return mapping;
}

}  // namespace moonpool::local
