// The part of Link that moves bytes on a connection that is ready.

#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/fence.h"
#include "net/socket.h"
#include "transport/tcp/link.h"

namespace moonpool::tcp {

using transport::Op;
using transport::Phase;

namespace {

// Small answers taken in one turn.
constexpr int kStepsMax = 64;

}  // namespace

// ---- sending

bool Link::Send(Time now, size_t budget) {
  bool moved = false;
  size_t sent = 0;
  // A trailer goes out at once: the owner waits for it with a whole payload.
  while (sent < budget || trailer_due_) {
    if (out_.done() && !BuildBatch(now)) {
      Arm(false);
      return moved;
    }
    const Gather::Step step = out_.Next(kStepBytes, narrow_send_ ? 1 : Gather::kRangesMax);
    const bool more = !outgoing_.empty() && outgoing_.back().trailer == nullptr;
    const ssize_t n = SendRanges(fd_.get(), step, more);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        blocked_ = true;
        Arm(true);
        return moved;
      }
      if (errno == EFAULT) {
        if (step.count == 1) SendFault(step.first);
        narrow_send_ = true;
        continue;
      }
      Break(Status(Code::kUnavailable, net::ErrnoText(errno)), now);
      return true;
    }
    moved = true;
    last_progress_ = now;
    sent += static_cast<size_t>(n);
    Sent(static_cast<size_t>(n));
  }
  runnable_ = !out_.done() || !queued_.empty();
  return moved;
}

// Moves the next queued slices into out_; false if there is nothing to send.
bool Link::BuildBatch(Time now) {
  out_.Clear();
  outgoing_.clear();
  outgoing_sent_ = 0;
  narrow_send_ = false;
  if (trailer_due_) out_.Add(trailer_out_.data(), trailer_out_.size());
  trailer_due_ = false;
  size_t heads = 0;
  size_t payload = 0;
  bool ends = false;  // with a payload whose checksum is not known before it is sent
  while (!queued_.empty() && !ends && payload < kStepBytes) {
    Flight& flight = flights_[queued_.head];
    const transport::Slice& slice = flight.slice;
    const size_t need = RequestBytes(slice.pieces.size(), slice.keys.size());
    if (heads + need + kTrailerBytes > heads_.size()) break;
    const bool writes = slice.op == Op::kWrite;
    if (out_.size() + 2 + (writes ? slice.pieces.size() : 0) > Gather::kRangesMax) break;
    const uint32_t index = Pop(queued_);
    Begin(index);
    Head head;
    head.op = slice.op;
    head.checksum = lane_.shared.options.checksum;
    head.sequence = flight.sequence;
    head.deadline = clock_.ToOwner(slice.deadline, now);
    head.bytes = slice.bytes;
    std::byte* const at = heads_.data() + heads;
    heads += EncodeRequest(head, slice, at);
    out_.Add(at, need);
    if (!writes) continue;
    Outgoing entry{index, out_.size(), 0, nullptr};
    for (const transport::Piece& piece : slice.pieces) {
      out_.Add(reinterpret_cast<void*>(piece.local), piece.size);
    }
    entry.end = out_.size();
    payload += slice.bytes;
    ends = head.checksum;
    if (!ends) {
      entry.trailer = heads_.data() + heads;
      EncodeTrailer({}, entry.trailer);
      out_.Add(entry.trailer, kTrailerBytes);
      heads += kTrailerBytes;
    }
    outgoing_.push_back(entry);
    crc_out_ = 0;
  }
  return !out_.done();
}

void Link::Begin(uint32_t index) {
  Flight& flight = flights_[index];
  flight.sequence = next_sequence_++;
  // A read's message is our own copy; a write's payload is not.
  flight.sent = flight.slice.op == Op::kRead;
  Push(flight.slice.op == Op::kRead ? reads_ : writes_, index);
  Wake(flight.slice.deadline);
}

void Link::Sent(size_t bytes) {
  const bool checksum = lane_.shared.options.checksum && !outgoing_.empty();
  size_t payload = 0;
  out_.Advance(bytes, [&](size_t range, const void* data, size_t size) {
    if (outgoing_.empty() || range < outgoing_.front().first) return;
    payload += size;
    if (!checksum || range >= outgoing_.back().end) return;
    crc_out_ = Crc32c(crc_out_, data, size);
  });
  if (payload > 0) Counters::Add(lane_.shared.counters.bytes_sent, payload);
  while (outgoing_sent_ < outgoing_.size() && out_.at() >= outgoing_[outgoing_sent_].end) {
    flights_[outgoing_[outgoing_sent_++].flight].sent = true;
  }
  if (out_.done()) BatchDone();
}

void Link::BatchDone() {
  if (outgoing_.empty() || outgoing_.back().trailer != nullptr) return;
  const Flight& flight = flights_[outgoing_.back().flight];
  EncodeTrailer({crc_out_, flight.failure}, trailer_out_.data());
  trailer_due_ = true;
  outgoing_.clear();
  outgoing_sent_ = 0;
}

// The kernel could not read range `range` of out_: memory that was registered is gone.
void Link::SendFault(size_t range) {
  for (const Outgoing& entry : outgoing_) {
    if (range < entry.first || range >= entry.end) continue;
    flights_[entry.flight].failure = Code::kInvalidArgument;
    PadOutgoing(entry.flight);
  }
}

// What is left of a payload is not read any more.
void Link::PadOutgoing(uint32_t flight) {
  for (const Outgoing& entry : outgoing_) {
    if (entry.flight != flight) continue;
    if (flights_[flight].failure == Code::kOk) flights_[flight].failure = Code::kTimedOut;
    if (out_.at() < entry.end) out_.Redirect(entry.first, entry.end, lane_.Zeros());
    if (entry.trailer != nullptr) EncodeTrailer({0, flights_[flight].failure}, entry.trailer);
  }
}

// ---- receiving

bool Link::Receive(Time now, size_t budget) {
  bool moved = false;
  received_ = 0;
  for (int steps = 0; state_ == State::kReady; ++steps) {
    if (received_ >= budget || steps == kStepsMax) {
      runnable_ = true;
      return moved;
    }
    bool drained = false;
    const bool got = receiving_ ? ReceivePayload(now, &drained) : ReceiveReplies(now, &drained);
    moved = moved || got;
    if (!got || drained) break;
  }
  return moved;
}

// After a receive that gave `result` (a negative errno): true if the connection is still good.
bool Link::BreakOnError(ssize_t result, Time now) {
  if (result == -EAGAIN || result == -EINTR) return true;
  const std::string cause =
      result == 0 ? "the peer closed the connection" : net::ErrnoText(static_cast<int>(-result));
  Break(Status(Code::kUnavailable, cause), now);
  return false;
}

bool Link::ReceiveReplies(Time now, bool* drained) {
  // While no read is under way nothing but replies can come: take many at once.
  const size_t want = reads_.empty() ? replies_.size() : kReplyBytes;
  if (replies_bytes_ < kReplyBytes) {
    const ssize_t n =
        recv(fd_.get(), replies_.data() + replies_bytes_, want - replies_bytes_, MSG_DONTWAIT);
    if (n <= 0) return !BreakOnError(n == 0 ? 0 : -errno, now);
    *drained = static_cast<size_t>(n) < want - replies_bytes_;
    replies_bytes_ += static_cast<size_t>(n);
    last_progress_ = now;
  }
  size_t at = 0;
  while (replies_bytes_ - at >= kReplyBytes && !receiving_) {
    const auto reply =
        DecodeReply(std::span<const std::byte, kReplyBytes>(replies_.data() + at, kReplyBytes));
    at += kReplyBytes;
    if (!reply || !OnReply(*reply) || (receiving_ && at != replies_bytes_)) {
      Break(Status(Code::kCorrupt, "the peer sent a malformed answer"), now);
      return true;
    }
  }
  replies_bytes_ -= at;
  if (replies_bytes_ > 0 && at > 0)
    std::memmove(replies_.data(), replies_.data() + at, replies_bytes_);
  return true;
}

// False: this is no answer to what was asked.
bool Link::OnReply(const Reply& reply) {
  List& list = reply.op == Op::kRead ? reads_ : writes_;
  if (list.empty()) return false;
  const uint32_t index = list.head;
  Flight& flight = flights_[index];
  if (reply.sequence != flight.sequence || !flight.sent) return false;
  const bool payload = reply.op == Op::kRead && reply.code == Code::kOk;
  if (reply.bytes != (payload ? flight.slice.bytes : 0)) return false;
  if (!clock_.same()) clock_.Observe(reply.clock, lane_.shared.env.clock.Now());
  if (!payload) {
    Pop(list);
    const Code code = flight.failure != Code::kOk ? flight.failure : reply.code;
    if (!flight.finished) Complete(flight, code, Phase::kData);
    Free(index);
    return true;
  }
  in_.Clear();
  for (const transport::Piece& piece :
       flight.finished ? std::span<const transport::Piece>() : flight.slice.pieces) {
    in_.Add(reinterpret_cast<void*>(piece.local), piece.size);
  }
  // The pieces of a finished slice may be gone, too.
  if (flight.finished) in_.Add(lane_.Sink(), flight.slice.bytes);
  in_.Add(trailer_in_.data(), trailer_in_.size());
  in_.Add(replies_.data(), kReplyBytes);
  receiving_ = true;
  crc_wanted_ = lane_.shared.options.checksum && !flight.finished;
  crc_in_ = 0;
  return true;
}

bool Link::ReceivePayload(Time now, bool* drained) {
  Flight& flight = flights_[reads_.head];
  const size_t trailer = in_.size() - 2;
  const Gather::Step step = in_.Next(kStepBytes);
  const Time deadline = flight.finished || in_.at() >= trailer ? kNever : flight.slice.deadline;
  const long n = FencedSyscall(deadline, SYS_readv, fd_.get(), reinterpret_cast<long>(step.ranges),
                               step.count);
  if (n == -ETIME || n == -EFAULT) {
    AbandonRead(n == -ETIME ? Code::kTimedOut : Code::kInvalidArgument);
    return true;
  }
  if (n <= 0) return !BreakOnError(n, now);
  OrderForSanitizer(fd_.get());
  *drained = static_cast<size_t>(n) < step.bytes;
  received_ += static_cast<size_t>(n);
  last_progress_ = now;
  size_t payload = 0;
  in_.Advance(static_cast<size_t>(n), [&](size_t range, const void* data, size_t size) {
    if (range >= trailer) return;
    payload += size;
    if (crc_wanted_) crc_in_ = Crc32c(crc_in_, data, size);
  });
  if (payload > 0) Counters::Add(lane_.shared.counters.bytes_received, payload);
  if (in_.at() > trailer && !FinishRead(now)) {
    Break(Status(Code::kCorrupt, "the peer sent a malformed trailer"), now);
  }
  return true;
}

// The payload and the trailer of the first read are here, and perhaps a part of the next reply.
bool Link::FinishRead(Time now) {
  const auto trailer = DecodeTrailer(trailer_in_);
  if (!trailer) return false;
  replies_bytes_ = kReplyBytes - (in_.done() ? 0 : in_.left_in(in_.size() - 1));
  receiving_ = false;
  const uint32_t index = Pop(reads_);
  Flight& flight = flights_[index];
  Code code = trailer->code;
  if (code == Code::kOk && crc_wanted_ && trailer->crc != crc_in_) {
    code = Code::kCorrupt;
    Counters::Add(lane_.shared.counters.checksum_errors);
  }
  if (!flight.finished) Complete(flight, code, Phase::kData);
  Free(index);
  if (replies_bytes_ < kReplyBytes) return true;
  bool drained = false;
  ReceiveReplies(now, &drained);
  return true;
}

// The read that is being received goes on into the sink.
void Link::AbandonRead(Code code) {
  Flight& flight = flights_[reads_.head];
  if (!flight.finished) Complete(flight, code, Phase::kData);
  crc_wanted_ = false;
  in_.Redirect(0, in_.size() - 2, lane_.Sink());
}

}  // namespace moonpool::tcp
