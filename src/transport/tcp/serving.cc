#include "transport/tcp/serving.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/crc32c.h"
#include "base/fence.h"
#include "base/port/sanitizer.h"
#include "memory/region_table.h"

namespace moonpool::tcp {

using transport::Op;

namespace {

// Fair over the connections of a thread: so many steps and bytes for each before the next has its
// turn.
constexpr int kStepsPerTurn = 64;
constexpr size_t kBytesPerTurn = 1 << 20;
// Read requests kept for use again.
constexpr size_t kSpareMax = 64;

void* Scratch(std::vector<std::byte>& buffer) {
  if (buffer.empty()) buffer.resize(kSliceBytes);
  return buffer.data();
}

// The checksum of a registered range, whose owner may write to it once the peer has given up.
uint32_t RangeCrc32c(uint32_t crc, const void* data, size_t size) {
  const OneSidedRead reading;
  return Crc32c(crc, data, size);
}

// What a waiting read costs, in table entries.
size_t EntriesOf(const Request& read) {
  return Serving::kRequestEntries + read.keys.size() + read.pieces.size();
}

Time DeadlineOf(const Head& head) {
  return head.deadline == kNoDeadline ? kNever : Time(Duration(head.deadline));
}

}  // namespace

Serving::Serving(ServingContext& context, UniqueFd fd, uint64_t id)
    : context_(context), fd_(std::move(fd)), id_(id) {
  Counters::Add(context_.shared.counters.connections_open);
}

Serving::~Serving() {
  CloseWatched(context_.epoll, fd_);
  Counters::Subtract(context_.shared.counters.connections_open);
}

bool Serving::Start() {
  armed_ = EPOLLIN;
  epoll_event event{.events = armed_, .data = {.ptr = this}};
  return epoll_ctl(context_.epoll, EPOLL_CTL_ADD, fd_.get(), &event) == 0;
}

bool Serving::OnEvent(bool readable, bool writable) {
  if (writable) blocked_ = false;
  if (readable && !Receive()) return false;
  if (!blocked_ && !Send()) return false;
  Arm();
  return true;
}

bool Serving::Full() const {
  return waiting_entries_ >= kWaitingEntriesMax || answers_.size() >= kAnswersMax;
}

void Serving::Arm() {
  // Also answers that came while a full turn sent what was before them.
  const bool unsent = blocked_ || !out_.done() || !waiting_.empty() || !answers_.empty();
  const uint32_t wanted = (Full() ? 0u : uint32_t{EPOLLIN}) | (unsent ? uint32_t{EPOLLOUT} : 0u);
  if (wanted == armed_) return;
  armed_ = wanted;
  epoll_event event{.events = wanted, .data = {.ptr = this}};
  epoll_ctl(context_.epoll, EPOLL_CTL_MOD, fd_.get(), &event);
}

bool Serving::Malformed() {
  Counters::Add(context_.shared.counters.connections_rejected);
  return false;
}

// ---- regions

// Looks at a whole request before any of its memory is touched.
Code Serving::Check(const Request& request, Rights need) {
  memory::RegionTable& regions = context_.shared.env.regions;
  std::vector<RegionInfo>& infos = context_.infos;
  infos.resize(request.keys.size());
  Code code = Code::kOk;
  size_t entered = 0;
  for (; entered < request.keys.size() && code == Code::kOk; ++entered) {
    code = regions.Enter(request.keys[entered], need, &infos[entered]);
    if (code != Code::kOk) break;
  }
  for (size_t i = 0; i < request.pieces.size() && code == Code::kOk; ++i) {
    const RemotePiece& piece = request.pieces[i];
    const RegionInfo& info = infos[piece.key];
    if (!RangeInside(piece.remote, piece.size, info.address, info.size)) {
      code = Code::kInvalidArgument;
    }
  }
  for (size_t i = 0; i < entered; ++i) regions.Leave(request.keys[i]);
  if (code != Code::kOk) Counters::Add(context_.shared.counters.requests_refused);
  return code;
}

// Enters the regions of pieces [first, end), which Check has seen.
Code Serving::Enter(const Request& request, size_t first, size_t end, Rights need) {
  entered_.clear();
  if (++stamp_ == 0 || stamps_.size() < request.keys.size()) {
    stamps_.assign(std::max(stamps_.size(), request.keys.size()), 0);
    stamp_ = 1;
  }
  for (size_t i = first; i < end; ++i) {
    const uint32_t key = request.pieces[i].key;
    if (stamps_[key] == stamp_) continue;
    const Code code = context_.shared.env.regions.Enter(request.keys[key], need, nullptr);
    if (code != Code::kOk) {
      Leave(request);
      Counters::Add(context_.shared.counters.requests_refused);
      return code;
    }
    stamps_[key] = stamp_;
    entered_.push_back(key);
  }
  return Code::kOk;
}

void Serving::Leave(const Request& request) {
  for (const uint32_t key : entered_) context_.shared.env.regions.Leave(request.keys[key]);
  entered_.clear();
}

// ---- receiving

bool Serving::Receive() {
  turn_bytes_ = 0;
  for (int step = 0; step < kStepsPerTurn && turn_bytes_ < kBytesPerTurn; ++step) {
    // Between messages only: a message that was begun is finished.
    if (stage_ == Stage::kHead && Full()) return true;
    bool drained = false;
    bool good = false;
    switch (stage_) {
      case Stage::kHead:
        good = ReceiveHead(&drained);
        break;
      case Stage::kTable:
        good = ReceiveTable(&drained);
        break;
      case Stage::kPayload:
        good = ReceivePayload(&drained);
        break;
    }
    if (!good) return false;
    if (drained) return true;
  }
  return true;
}

bool Serving::ReceiveHead(bool* drained) {
  const ssize_t n =
      recv(fd_.get(), head_.data() + head_bytes_, kHeadBytes - head_bytes_, MSG_DONTWAIT);
  if (n <= 0) {
    *drained = true;
    return n < 0 && (errno == EAGAIN || errno == EINTR);
  }
  turn_bytes_ += static_cast<size_t>(n);
  head_bytes_ += static_cast<size_t>(n);
  if (head_bytes_ == kHeadBytes) return OnHead();
  *drained = true;
  return true;
}

bool Serving::OnHead() {
  head_bytes_ = 0;
  if (!DecodeHead(head_, &request_)) return Malformed();
  const size_t table = request_.head.table_bytes();
  if (table == 0) {
    OnRequest();
    return true;
  }
  table_.resize(table);
  table_bytes_ = 0;
  stage_ = Stage::kTable;
  return true;
}

bool Serving::ReceiveTable(bool* drained) {
  const ssize_t n =
      recv(fd_.get(), table_.data() + table_bytes_, table_.size() - table_bytes_, MSG_DONTWAIT);
  if (n <= 0) {
    *drained = true;
    return n < 0 && (errno == EAGAIN || errno == EINTR);
  }
  turn_bytes_ += static_cast<size_t>(n);
  table_bytes_ += static_cast<size_t>(n);
  if (table_bytes_ < table_.size()) {
    *drained = true;
    return true;
  }
  if (!DecodeTable(head_, table_, &request_)) return Malformed();
  OnRequest();
  return true;
}

void Serving::OnRequest() {
  if (request_.head.op == Op::kRead) {
    stage_ = Stage::kHead;
    std::unique_ptr<Request> read;
    if (context_.spare.empty()) {
      read = std::make_unique<Request>();
    } else {
      read = std::move(context_.spare.back());
      context_.spare.pop_back();
    }
    std::swap(*read, request_);
    waiting_entries_ += EntriesOf(*read);
    waiting_.push_back(std::move(read));
    return;
  }
  stage_ = Stage::kPayload;
  in_.Clear();
  for (const RemotePiece& piece : request_.pieces) {
    in_.Add(reinterpret_cast<void*>(piece.remote), piece.size);
  }
  in_.Add(trailer_in_.data(), trailer_in_.size());
  in_.Add(head_.data(), head_.size());
  crc_in_ = 0;
  code_ = Code::kOk;
  const Code code = Check(request_, Rights::kWrite);
  if (code != Code::kOk) Discard(code);
}

// What is left of the payload is not stored.
void Serving::Discard(Code code) {
  code_ = code;
  in_.Redirect(0, request_.pieces.size(), Scratch(context_.sink));
}

bool Serving::ReceivePayload(bool* drained) {
  const size_t trailer = request_.pieces.size();
  const Gather::Step step = in_.Next(kStepBytes);
  const bool stores = code_ == Code::kOk && step.first < trailer;
  if (stores) {
    const size_t end = std::min(trailer, step.first + static_cast<size_t>(step.count));
    const Code code = Enter(request_, step.first, end, Rights::kWrite);
    if (code != Code::kOk) {
      Discard(code);
      return true;
    }
  }
  const long n = FencedSyscall(stores ? DeadlineOf(request_.head) : kNever, SYS_readv, fd_.get(),
                               reinterpret_cast<long>(step.ranges), step.count);
  if (n > 0) {
    OrderForSanitizer(fd_.get());
    *drained = static_cast<size_t>(n) < step.bytes;
    turn_bytes_ += static_cast<size_t>(n);
    const bool sum = stores && request_.head.checksum;
    size_t payload = 0;
    in_.Advance(static_cast<size_t>(n), [&](size_t range, const void* data, size_t size) {
      if (range >= trailer) return;
      payload += size;
      if (sum) crc_in_ = RangeCrc32c(crc_in_, data, size);
    });
    if (payload > 0) Counters::Add(context_.shared.counters.bytes_received, payload);
  }
  if (stores) Leave(request_);
  if (n == -ETIME || n == -EFAULT) {
    Discard(n == -ETIME ? Code::kTimedOut : Code::kInvalidArgument);
    return true;
  }
  if (n <= 0) {
    *drained = true;
    return n == -EAGAIN || n == -EINTR;
  }
  return in_.at() <= trailer || FinishWrite();
}

// The payload and the trailer are here, and perhaps a part of the next head.
bool Serving::FinishWrite() {
  const auto trailer = DecodeTrailer(trailer_in_);
  if (!trailer) return Malformed();
  if (code_ == Code::kOk) code_ = trailer->code;
  if (code_ == Code::kOk && request_.head.checksum && trailer->crc != crc_in_) {
    // Past the deadline the memory is its owner's again: what was summed may not be what had come.
    const bool late = context_.shared.env.clock.Now() >= DeadlineOf(request_.head);
    code_ = late ? Code::kTimedOut : Code::kCorrupt;
    if (!late) Counters::Add(context_.shared.counters.checksum_errors);
  }
  Answer(Op::kWrite, request_.head.sequence, code_);
  head_bytes_ = kHeadBytes - (in_.done() ? 0 : in_.left_in(in_.size() - 1));
  stage_ = Stage::kHead;
  return head_bytes_ < kHeadBytes || OnHead();
}

// ---- sending

void Serving::Answer(Op op, uint64_t sequence, Code code) {
  Reply reply;
  reply.op = op;
  reply.code = code;
  reply.sequence = sequence;
  reply.clock = context_.shared.env.clock.Now().time_since_epoch().count();
  const size_t at = answers_.size();
  answers_.resize(at + kReplyBytes);
  EncodeReply(reply, answers_.data() + at);
  Counters::Add(context_.shared.counters.slices_served);
}

bool Serving::Send() {
  size_t sent = 0;
  for (int steps = 0; (steps < kStepsPerTurn && sent < kBytesPerTurn) || trailer_due_; ++steps) {
    if (out_.done() && !BuildBatch()) return true;
    const Gather::Step step = out_.Next(kStepBytes);
    const bool more = payload_ && waiting_.front()->head.checksum;
    const long n = SendStep(step, more);
    if (n == -EAGAIN) {
      blocked_ = true;
      return true;
    }
    if (n < 0 && n != -EINTR) return false;
    if (n > 0) sent += static_cast<size_t>(n);
    if (out_.done()) BatchDone();
  }
  return true;
}

// One sendmsg of `step`, inside the regions that it reads; 0 if the payload was replaced by
// padding instead.
long Serving::SendStep(const Gather::Step& step, bool more) {
  const size_t first = std::max(step.first, payload_first_);
  const size_t end = std::min(step.first + static_cast<size_t>(step.count), payload_end_);
  const bool loads = payload_ && payload_code_ == Code::kOk && first < end;
  if (loads) {
    const Request& request = *waiting_.front();
    if (context_.shared.env.clock.Now() >= DeadlineOf(request.head)) {
      Pad(Code::kTimedOut);
      return 0;
    }
    const Code code = Enter(request, first - payload_first_, end - payload_first_, Rights::kRead);
    if (code != Code::kOk) {
      Pad(code);
      return 0;
    }
  }
  const ssize_t n = SendRanges(fd_.get(), step, more);
  const int error = errno;
  if (n > 0) {
    const bool sum = loads && waiting_.front()->head.checksum;
    size_t payload = 0;
    out_.Advance(static_cast<size_t>(n), [&](size_t range, const void* data, size_t size) {
      if (!payload_ || range < payload_first_ || range >= payload_end_) return;
      payload += size;
      if (sum) crc_out_ = RangeCrc32c(crc_out_, data, size);
    });
    if (payload > 0) Counters::Add(context_.shared.counters.bytes_sent, payload);
  }
  if (loads) Leave(*waiting_.front());
  if (n >= 0) return n;
  if (error != EFAULT) return -error;
  if (!loads) return -EFAULT;
  Pad(Code::kInvalidArgument);
  return 0;
}

// What is left of the payload is not read any more; the trailer says so.
void Serving::Pad(Code code) {
  payload_code_ = code;
  out_.Redirect(payload_first_, payload_end_, Scratch(context_.zeros));
  EncodeTrailer({0, code}, trailer_out_.data());
}

// Moves what waits to be sent into out_; false if nothing does.
bool Serving::BuildBatch() {
  out_.Clear();
  if (trailer_due_) out_.Add(trailer_before_.data(), trailer_before_.size());
  trailer_due_ = false;
  bool ready = false;  // the first waiting read may be answered with data
  while (!waiting_.empty() && !ready && answers_.size() < kAnswersMax) {
    const Request& read = *waiting_.front();
    const Code code = context_.shared.env.clock.Now() >= DeadlineOf(read.head)
                          ? Code::kTimedOut
                          : Check(read, Rights::kRead);
    ready = code == Code::kOk;
    if (ready) break;
    Answer(Op::kRead, read.head.sequence, code);
    waiting_entries_ -= EntriesOf(read);
    waiting_.pop_front();
  }
  if (!answers_.empty()) {
    std::swap(answers_, answers_sending_);
    answers_.clear();
    out_.Add(answers_sending_.data(), answers_sending_.size());
  }
  if (ready) BeginRead();
  return !out_.done();
}

void Serving::BeginRead() {
  const Request& read = *waiting_.front();
  Reply reply;
  reply.op = Op::kRead;
  reply.sequence = read.head.sequence;
  reply.bytes = read.head.bytes;
  reply.clock = context_.shared.env.clock.Now().time_since_epoch().count();
  EncodeReply(reply, reply_out_.data());
  out_.Add(reply_out_.data(), reply_out_.size());
  payload_ = true;
  payload_code_ = Code::kOk;
  payload_first_ = out_.size();
  for (const RemotePiece& piece : read.pieces) {
    out_.Add(reinterpret_cast<void*>(piece.remote), piece.size);
  }
  payload_end_ = out_.size();
  crc_out_ = 0;
  EncodeTrailer({}, trailer_out_.data());
  // With a checksum the trailer is known once the payload is sent.
  if (!read.head.checksum) out_.Add(trailer_out_.data(), trailer_out_.size());
}

void Serving::BatchDone() {
  if (!payload_) return;
  payload_ = false;
  std::unique_ptr<Request> read = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_entries_ -= EntriesOf(*read);
  if (read->head.checksum) {
    EncodeTrailer({crc_out_, payload_code_}, trailer_before_.data());
    trailer_due_ = true;
  }
  Counters::Add(context_.shared.counters.slices_served);
  if (context_.spare.size() < kSpareMax) context_.spare.push_back(std::move(read));
}

}  // namespace moonpool::tcp
