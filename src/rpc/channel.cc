#include "rpc/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/str.h"
#include "net/socket.h"

namespace moonpool::rpc {
namespace {

constexpr size_t kReadBytes = size_t{64} * 1024;

Status Gone(const char* what, int error) {
  return Status(Code::kUnavailable, Str(what, ": ", net::ErrnoText(error)));
}

// Appends what has arrived. kAgain: nothing has; kUnavailable: the peer is gone.
Status Receive(int fd, std::string& in) {
  std::array<char, kReadBytes> scratch;
  while (true) {
    const ssize_t got = ::recv(fd, scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (got > 0) {
      in.append(scratch.data(), static_cast<size_t>(got));
      return Status::Ok();
    }
    if (got == 0) return Status(Code::kUnavailable, "the peer closed the connection");
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return Status(Code::kAgain, "nothing has arrived");
    return Gone("receive", errno);
  }
}

// Sends `bytes`, and takes away from it what the kernel has taken.
Status SendAll(const Channel::Environment& env, int fd, std::string_view& bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      MOONPOOL_RETURN_IF_ERROR(net::WaitFor(env.clock, fd, POLLOUT, {deadline, env.wake_fd}));
    } else if (errno != EINTR) {
      return Gone("send", errno);
    }
  }
  return Status::Ok();
}

Result<uint8_t> ReadWelcome(const ClientOptions& options, const Frame& frame) {
  if (frame.kind == Kind::kRefusal) {
    MOONPOOL_ASSIGN_OR_RETURN(const VersionRange theirs, DecodeRange(frame.payload));
    const auto chosen = Negotiate(options.versions, theirs);
    if (!chosen.ok()) return chosen.status();
    return Status(Code::kUnsupported, "the peer refused a protocol version that it speaks");
  }
  if (frame.kind != Kind::kWelcome || frame.payload.size() != 1) {
    return Status(Code::kCorrupt, "the peer's first frame is no welcome");
  }
  const auto version = static_cast<uint8_t>(frame.payload[0]);
  if (version < options.versions.lowest || version > options.versions.highest) {
    return Status(Code::kCorrupt, Str("the peer chose version ", int{version}));
  }
  return version;
}

}  // namespace

Result<std::shared_ptr<Channel>> Channel::Open(const Environment& env, UniqueFd fd, Time deadline) {
  net::SetNoDelay(fd.get());
  net::SetDeadPeerTimeout(fd.get(), env.options.dead_peer_timeout);
  const std::string hello = EncodeHello(env.options.versions);
  std::string_view unsent = hello;
  MOONPOOL_RETURN_IF_ERROR(SendAll(env, fd.get(), unsent, deadline));
  std::string in;
  while (true) {
    MOONPOOL_ASSIGN_OR_RETURN(const std::optional<Frame> frame, Decode(in));
    if (frame) {
      MOONPOOL_ASSIGN_OR_RETURN(const uint8_t version, ReadWelcome(env.options, *frame));
      if (frame->size() != in.size()) {
        return Status(Code::kCorrupt, "the peer sent more than a welcome");
      }
      return std::make_shared<Channel>(env, std::move(fd), version);
    }
    MOONPOOL_RETURN_IF_ERROR(net::WaitFor(env.clock, fd.get(), POLLIN, {deadline, env.wake_fd}));
    const Status received = Receive(fd.get(), in);
    if (!received.ok() && received.code() != Code::kAgain) return received;
  }
}

Channel::Channel(const Environment& env, UniqueFd fd, uint8_t version)
    : env_(env),
      fd_(std::move(fd)),
      version_(version),
      peer_host_(net::PeerEndpoint(fd_.get()).host()) {}

bool Channel::broken() {
  MutexLock lock(mutex_);
  if (!failure_.ok() || suspect_) return true;
  if (reading_) return false;  // the reader will notice
  // Replies to calls that gave up may have arrived, and the peer may have closed since.
  while (true) {
    Status received = Receive(fd_.get(), in_);
    if (received.code() == Code::kAgain) return false;
    if (received.ok()) received = Deliver();
    if (!received.ok()) {
      Break(received);
      return true;
    }
  }
}

size_t Channel::calls() const {
  MutexLock lock(mutex_);
  return waiters_.size();
}

void Channel::Break(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  ::shutdown(fd_.get(), SHUT_RDWR);  // wakes the reader and the writer
  for (auto& [id, waiter] : waiters_) {
    if (std::exchange(waiter->done, true)) continue;
    waiter->result = status;
  }
  changed_.NotifyAll();
}

void Channel::Abort(const Status& status) {
  MutexLock lock(mutex_);
  Break(status);
}

void Channel::WaitChanged(Time deadline) {
  const Duration left = deadline - env_.clock.Now();
  if (left <= Duration(0)) return;
  changed_.WaitFor(mutex_, std::min<Duration>(left, std::chrono::hours(1)));
}

Status Channel::TakeWriter(Time deadline) {
  MutexLock lock(mutex_);
  while (writing_ && failure_.ok()) {
    if (env_.clock.Now() >= deadline) {
      return Status(Code::kTimedOut, "earlier requests to this peer are still being sent");
    }
    WaitChanged(deadline);
  }
  if (failure_.ok()) writing_ = true;
  return failure_;
}

Status Channel::Write(std::string_view bytes, Time deadline, bool& sent) {
  MOONPOOL_RETURN_IF_ERROR(TakeWriter(deadline));
  std::string_view unsent = bytes;
  Status status = SendAll(env_, fd_.get(), unsent, deadline);
  sent = unsent.size() < bytes.size();
  MutexLock lock(mutex_);
  writing_ = false;
  if (status.code() == Code::kUnavailable) {
    Break(status);
  } else if (!status.ok() && sent) {
    Break(
        Status(Code::kUnavailable, "an earlier request was cut short, which ends the connection"));
  }
  changed_.NotifyAll();
  return status;
}

// Decodes what has arrived and completes the calls that it answers.
Status Channel::Deliver() {
  size_t used = 0;
  Status status;
  while (status.ok()) {
    const auto frame = Decode(std::string_view(in_).substr(used), env_.options.frame_bytes_max);
    if (!frame.ok()) {
      status = frame.status();
    } else if (!frame->has_value()) {
      break;
    } else if ((*frame)->kind != Kind::kReply || (*frame)->version != version_) {
      status = Status(Code::kCorrupt, "the peer sent a frame that is not a reply");
    } else {
      const Frame& reply = **frame;
      used += reply.size();
      const auto it = waiters_.find(reply.id);
      if (it == waiters_.end() || it->second->done) continue;  // that call has given up
      Waiter& waiter = *it->second;
      waiter.done = true;
      waiter.answered = true;
      if (reply.code == Code::kOk) {
        waiter.result = std::string(reply.payload);
      } else {
        waiter.result = Status(reply.code, std::string(reply.payload));
      }
    }
  }
  if (used == in_.size()) {
    in_ = std::string();
  } else {
    in_.erase(0, used);
  }
  changed_.NotifyAll();
  return status;
}

// As the reader: waits for bytes, and delivers them.
Status Channel::ReadOnce(Time deadline) {
  MOONPOOL_RETURN_IF_ERROR(net::WaitFor(env_.clock, fd_.get(), POLLIN, {deadline, env_.wake_fd}));
  MutexLock lock(mutex_);
  const Status received = Receive(fd_.get(), in_);
  if (received.code() == Code::kAgain) return Status::Ok();
  MOONPOOL_RETURN_IF_ERROR(received);
  ++reads_;
  return Deliver();
}

Result<std::string> Channel::Call(const Request& request, Outcome& outcome) {
  Frame frame{.kind = Kind::kRequest,
              .version = version_,
              .method = request.method,
              .payload = request.payload};
  // A deadline travels as the time left, so that no clocks need to agree.
  frame.timeout_ms = static_cast<uint32_t>(
      request.deadline == kNever
          ? 0
          : std::max(1, MillisUntil(env_.clock.Now(), request.deadline, INT32_MAX)));
  Waiter waiter;
  uint64_t reads_before = 0;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    frame.id = next_id_++;
    waiters_.emplace(frame.id, &waiter);
    reads_before = reads_;
  }
  Status status = Write(Encode(frame), request.deadline, outcome.sent);
  MutexLock lock(mutex_);
  while (status.ok() && !waiter.done) {
    if (env_.clock.Now() >= request.deadline) {
      status = Status(Code::kTimedOut, "the peer has not answered in time");
      // A peer that sent nothing at all meanwhile may be gone without a word: the next call
      // starts a new connection. Other calls here wait on.
      if (reads_ == reads_before) suspect_ = true;
    } else if (reading_) {
      WaitChanged(request.deadline);
    } else {
      reading_ = true;
      mutex_.Unlock();
      const Status read = ReadOnce(request.deadline);
      mutex_.Lock();
      reading_ = false;
      changed_.NotifyAll();  // another takes the role
      if (!read.ok() && read.code() != Code::kTimedOut) Break(read);
    }
  }
  waiters_.erase(frame.id);
  if (!waiter.done) return status;
  outcome.answered = waiter.answered;
  return std::move(waiter.result);
}

}  // namespace moonpool::rpc
