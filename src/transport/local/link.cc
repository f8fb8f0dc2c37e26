#include "transport/local/link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/str.h"
#include "memory/arena_set.h"

namespace moonpool::local {

using transport::Op;
using transport::Phase;
using transport::Piece;
using transport::Slice;

namespace {

constexpr Duration kConnectAgain = std::chrono::milliseconds(2);
constexpr Duration kSendAgain = std::chrono::milliseconds(1);
constexpr Duration kExportsLook = std::chrono::seconds(1);
constexpr int kPacketsPerTurn = 64;

// The caller's part of the contract, checked here once so that nothing below overflows.
bool WellFormed(const Slice& slice) {
  if (slice.pieces.empty() || slice.pieces.size() > kPiecesMax) return false;
  if (slice.keys.empty() || slice.keys.size() > kKeysMax) return false;
  uint64_t bytes = 0;
  for (const Piece& piece : slice.pieces) {
    if (piece.size == 0 || piece.key >= slice.keys.size()) return false;
    bytes += piece.size;
  }
  return bytes == slice.bytes && bytes <= kSliceBytes;
}

}  // namespace

bool OwnArenas::Find(uint64_t address, uint64_t size, WireSource* source) {
  if (last_ == nullptr || !RangeInside(address, size, last_source_.base, last_->size())) {
    const auto place = arenas_.Find(address, size);
    if (!place) return false;
    auto arena = arenas_.Get(place->arena);
    if (arena == nullptr) return false;
    last_ = std::move(arena);
    last_source_ = {place->arena, 0, address - place->offset};
  }
  *source = last_source_;
  return true;
}

LaneRoom::LaneRoom(const transport::Environment& env_in, Counters& counters_in, const Self& self_in)
    : env(env_in), counters(counters_in), self(self_in), own(env_in.arenas) {
  entries.reserve(kKeysMax);
  moves.reserve(kStepMoves);
  write.sources.reserve(kSourcesMax);
  write.keys.reserve(kKeysMax);
  write.pieces.reserve(kPiecesMax);
}

Link::Link(LaneRoom& room, std::shared_ptr<PeerState> peer) : room_(room), peer_(std::move(peer)) {
  for (uint16_t i = 0; i < kSlots; ++i) {
    slots_[i].before = i == 0 ? kNil : static_cast<uint16_t>(i - 1);
    slots_[i].after = i + 1 == kSlots ? kNil : static_cast<uint16_t>(i + 1);
  }
  free_ = {0, kSlots - 1, kSlots};
}

Link::~Link() {
  if (socket_.valid()) room_.counters.connections_open.fetch_sub(1, std::memory_order_relaxed);
  Unwatch(socket_);
  Unwatch(pidfd_);
}

void Link::Watch(int fd, uint64_t bit) const {
  if (fd < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = reinterpret_cast<uint64_t>(this) | bit;
  epoll_ctl(room_.poller, EPOLL_CTL_ADD, fd, &event);
}

// Taken out by hand: a duplicate elsewhere (another link, a forked child) would keep it in.
void Link::Unwatch(UniqueFd& fd) const {
  if (fd.valid()) epoll_ctl(room_.poller, EPOLL_CTL_DEL, fd.get(), nullptr);
  fd.Reset();
}

// --- slots

Link::List& Link::ListOf(SlotState state) {
  switch (state) {
    case SlotState::kRead:
      return reads_;
    case SlotState::kWrite:
      return writes_;
    case SlotState::kSent:
      return sent_;
    case SlotState::kDone:
      return done_;
    default:
      return free_;
  }
}

// To the end of another list.
void Link::MoveTo(uint16_t index, SlotState to) {
  Slot& slot = slots_[index];
  List& from = ListOf(slot.state);
  (slot.before == kNil ? from.head : slots_[slot.before].after) = slot.after;
  (slot.after == kNil ? from.tail : slots_[slot.after].before) = slot.before;
  --from.size;
  slot.state = to;
  List& list = ListOf(to);
  slot.before = list.tail;
  slot.after = kNil;
  (list.tail == kNil ? list.head : slots_[list.tail].after) = index;
  list.tail = index;
  ++list.size;
}

void Link::Finish(uint16_t index, Code code, Phase phase) {
  Slot& slot = slots_[index];
  if (slot.state == SlotState::kRead && index == reads_.head) waiting_ = false;
  slot.code = code;
  slot.phase = code == Code::kOk ? Phase::kNone : phase;
  MoveTo(index, SlotState::kDone);
}

Phase Link::phase() const {
  if (state_ == State::kConnecting) return Phase::kConnect;
  return state_ == State::kGreeting ? Phase::kHandshake : Phase::kData;
}

Time Link::DueOf(const Slot& slot) const {
  return slot.state == SlotState::kSent ? After(slot.slice.deadline, kSettle) : slot.slice.deadline;
}

bool Link::Accept(const Slice& slice, Time now) {
  if (free_.size == 0) return false;
  const uint16_t index = free_.head;
  Slot& slot = slots_[index];
  slot.slice = slice;
  slot.repeated = false;
  MoveTo(index, slice.op == Op::kRead ? SlotState::kRead : SlotState::kWrite);
  if (!WellFormed(slice)) {
    peer_->Fail(Code::kInvalidArgument, Phase::kData, "a slice outside this transport's limits");
    Finish(index, Code::kInvalidArgument);
  }
  due_ = std::min(due_, slice.deadline);
  if (state_ == State::kConnecting) retry_at_ = std::min(retry_at_, now);
  return true;
}

bool Link::Cancel(uint64_t cookie) {
  for (uint16_t i = 0; i < kSlots; ++i) {
    const Slot& slot = slots_[i];
    if (slot.slice.cookie != cookie) continue;
    if (slot.state == SlotState::kRead || slot.state == SlotState::kWrite) {
      Finish(i, Code::kCancelled);  // nobody has begun it
      return true;
    }
    if (slot.state != SlotState::kFree) return true;
  }
  return false;
}

size_t Link::Harvest(std::span<transport::Completion> out) {
  size_t count = 0;
  while (count < out.size() && done_.size > 0) {
    const uint16_t index = done_.head;
    const Slot& slot = slots_[index];
    out[count++] = {slot.slice.cookie, slot.code, slot.phase};
    MoveTo(index, SlotState::kFree);
  }
  return count;
}

void Link::Expire(Time now) {
  if (now < due_) return;
  due_ = kNever;
  for (uint16_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    if (slot.state == SlotState::kFree || slot.state == SlotState::kDone) continue;
    const Time due = DueOf(slot);
    if (due <= now) {
      peer_->Fail(Code::kTimedOut, phase(), "the deadline passed");
      Finish(i, Code::kTimedOut, phase());
    } else {
      due_ = std::min(due_, due);
    }
  }
  if (state_ == State::kDraining && sent_.size == 0) Die(Code::kTimedOut, "nothing left");
}

void Link::FailAll(Code code, std::string_view cause, bool sent_too) {
  const Phase at = phase();
  if (in_flight() > done_.size) peer_->Fail(code, at, cause);
  for (uint16_t i = 0; i < kSlots; ++i) {
    const SlotState state = slots_[i].state;
    const bool queued = state == SlotState::kRead || state == SlotState::kWrite;
    if (queued || (sent_too && state == SlotState::kSent)) Finish(i, code, at);
  }
}

// Requires: nothing is stored any more for what was sent.
void Link::Die(Code code, std::string_view cause) {
  FailAll(code, cause, true);
  if (socket_.valid()) room_.counters.connections_open.fetch_sub(1, std::memory_order_relaxed);
  state_ = State::kDead;
  due_ = retry_at_ = exports_due_ = kNever;
  arenas_.clear();
  if (socket_.valid()) shutdown(socket_.get(), SHUT_RDWR);  // for duplicates in forked children
  Unwatch(socket_);
  Unwatch(pidfd_);
}

void Link::Drain(Code code, std::string_view cause) {
  if (state_ == State::kDead) return;
  FailAll(code, cause, false);
  if (sent_.size == 0) return Die(code, cause);
  state_ = State::kDraining;
  exports_due_ = retry_at_ = kNever;
  shutdown(socket_.get(), SHUT_WR);  // the owner answers what it has, then closes
}

// --- the connection

void Link::Retry(Time now) {
  if (now < retry_at_) return;
  if (state_ == State::kConnecting) return Connect(now);
  retry_at_ = kNever;
  SendWrites(now);
}

void Link::Connect(Time now) {
  if (state_ != State::kConnecting || now < retry_at_) return;
  retry_at_ = kNever;
  int error = 0;
  socket_ = local::Connect(peer_->fixed().address.socket, &error);
  if (!socket_.valid()) {
    if (error == EAGAIN) {
      retry_at_ = now + kConnectAgain;  // its backlog is full
    } else {
      Die(Code::kUnavailable, std::strerror(error));
    }
    return;
  }
  room_.counters.connections_open.fetch_add(1, std::memory_order_relaxed);
  state_ = State::kGreeting;
  if (peer_->fixed().pidfd.valid()) {
    pidfd_.Reset(fcntl(peer_->fixed().pidfd.get(), F_DUPFD_CLOEXEC, 0));
  }
  Hello hello;
  hello.from = room_.self.id;
  hello.to = peer_->fixed().address.id;
  hello.cell = room_.self.cell;
  Watch(socket_.get(), 0);
  Watch(pidfd_.get(), kEndedBit);
  error = Send(socket_.get(), EncodeHello(hello));
  if (error != 0) Die(Code::kUnavailable, std::strerror(error));
}

void Link::OnReadable(Time now) {
  for (int i = 0; i < kPacketsPerTurn && state_ != State::kDead; ++i) {
    Packet packet = Receive(socket_.get(), room_.buffer);
    if (packet.error == EAGAIN) break;
    if (packet.error == 0 && packet.bytes.empty()) {
      return Die(Code::kUnavailable, "the peer closed the connection");
    }
    const bool good = packet.error == 0 && HandlePacket(std::move(packet));
    if (!good && state_ != State::kDead) Drain(Code::kUnavailable, "malformed packet of the peer");
  }
  SendWrites(now);
}

void Link::OnPeerEnded(Time now) {
  OnReadable(now);  // its last answers
  if (state_ != State::kDead) Die(Code::kUnavailable, "the peer's process has ended");
}

bool Link::HandlePacket(Packet packet) {
  const auto kind = static_cast<Kind>(KindOf(packet.bytes));
  if (state_ == State::kGreeting) {
    Welcome welcome;
    if (!DecodeWelcome(packet.bytes, &welcome)) return false;
    const Status status = CheckWelcome(welcome, peer_->fixed().address.id);
    if (!status.ok()) {
      Die(status.code(), status.message());
      return true;
    }
    state_ = State::kOpen;
    return true;
  }
  if (kind == Kind::kReply) {
    Reply reply;
    return DecodeReply(packet.bytes, &reply) && HandleReply(reply);
  }
  ArenaMessage arena;
  if (!DecodeArena(packet.bytes, &arena)) return false;
  if (arena.kind == Kind::kDropArena) {
    arenas_.erase(arena.number);
    waiting_ = false;
    return true;
  }
  return arena.kind == Kind::kArena && HandleArena(arena, std::move(packet.fd));
}

bool Link::HandleReply(const Reply& reply) {
  const auto index = static_cast<uint16_t>(reply.id % kSlots);
  Slot& slot = slots_[index];
  if (at_owner_ == 0) return false;
  --at_owner_;
  if (slot.state != SlotState::kSent || slot.id != reply.id) return true;  // it has timed out
  if (reply.code == Code::kAgain) {
    if (slot.repeated || state_ != State::kOpen) {
      Finish(index, Code::kUnsupported);
      return true;
    }
    slot.repeated = true;
    exported_.clear();
    MoveTo(index, SlotState::kWrite);
    due_ = std::min(due_, slot.slice.deadline);
    return true;
  }
  if (reply.code == Code::kOk) {
    room_.counters.bytes_sent.fetch_add(slot.slice.bytes, std::memory_order_relaxed);
  } else {
    peer_->Fail(reply.code, Phase::kData, Str("the owner answers ", CodeName(reply.code)));
  }
  Finish(index, reply.code);
  return true;
}

bool Link::HandleArena(const ArenaMessage& message, UniqueFd fd) {
  const auto it = arenas_.find(message.number);
  if (it == arenas_.end()) return true;  // dropped meanwhile
  waiting_ = false;
  it->second.requested = false;
  if (message.size == 0) return !fd.valid();
  if (!fd.valid()) return false;
  auto mapping = peer_->Map(message.number, fd.get(), message.size);
  if (mapping.ok()) {
    it->second.mapping = *std::move(mapping);
  } else {
    peer_->Fail(mapping.code(), Phase::kData, mapping.status().message());  // CMA, then
  }
  return true;
}

// --- reading

uint64_t Link::ReadOne(uint64_t room, bool first) {
  if (!CanRead()) return 0;
  const uint16_t index = reads_.head;
  const Slice& slice = slots_[index].slice;
  if (!first && slice.bytes > room) return 0;
  Code code = CheckRead(slice);
  if (code == Code::kOk && !PrepareArenas()) {
    waiting_ = state_ == State::kOpen;
    return 0;
  }
  if (code == Code::kOk) {
    code = RunRead(slice);
    // Whatever came of it: bytes of a region that was closed meanwhile do not count.
    for (const BoardView::Entry& entry : room_.entries) {
      const Code still = peer_->fixed().board->Still(entry);
      if (still != Code::kOk && code != Code::kTimedOut) code = still;
    }
  }
  if (code == Code::kOk) {
    room_.counters.bytes_received.fetch_add(slice.bytes, std::memory_order_relaxed);
  } else {
    if (code == Code::kStale || code == Code::kInvalidArgument) {
      room_.counters.requests_refused.fetch_add(1, std::memory_order_relaxed);
    }
    peer_->Fail(code, Phase::kData, Str("read: ", CodeName(code)));
  }
  const uint64_t bytes = slice.bytes;
  Finish(index, code);
  return bytes;
}

// Everything before the first byte. Leaves the entries of the slice's keys in the room.
Code Link::CheckRead(const Slice& slice) {
  room_.entries.resize(slice.keys.size());
  for (size_t i = 0; i < slice.keys.size(); ++i) {
    const Code code = peer_->fixed().board->Check(slice.keys[i], &room_.entries[i]);
    if (code != Code::kOk) return code;
  }
  for (const Piece& piece : slice.pieces) {
    const BoardView::Entry& entry = room_.entries[piece.key];
    if (!RangeInside(piece.remote, piece.size, entry.address, entry.size)) {
      return Code::kInvalidArgument;
    }
  }
  return Code::kOk;
}

// True when each arena of the slice is mapped or known not to be had. Else its descriptor has been
// asked for, and the read waits.
bool Link::PrepareArenas() {
  bool ready = true;
  for (const BoardView::Entry& entry : room_.entries) {
    if (entry.arena == kNoArena) continue;
    auto it = arenas_.find(entry.arena);
    if (it == arenas_.end()) {
      if (arenas_.size() >= kArenasMax) continue;
      it = arenas_.try_emplace(entry.arena).first;
      it->second.mapping = peer_->Find(entry.arena);
      // Asked for even if another lane has it: the owner tells those who asked when it goes.
      ArenaMessage ask;
      ask.kind = Kind::kGetArena;
      ask.number = entry.arena;
      it->second.requested = Send(socket_.get(), BytesOf(ask)) == 0;
    }
    if (it->second.requested && it->second.mapping == nullptr) ready = false;
  }
  return ready;
}

// Where a piece is mapped here, or null. The mapped copy is for shared memory on both sides: a copy
// by the kernel reports it when a local range has no pages.
const std::byte* Link::MappedAt(const BoardView::Entry& entry, const Piece& piece) {
  if (entry.arena == kNoArena) return nullptr;
  const auto it = arenas_.find(entry.arena);
  if (it == arenas_.end() || it->second.mapping == nullptr) return nullptr;
  WireSource own;
  if (peer_->fixed().origin.cma() && !room_.own.Find(piece.local, piece.size, &own)) {
    return nullptr;
  }
  const uint64_t inside = piece.remote - entry.address;
  if (entry.arena_offset > UINT64_MAX - inside) return nullptr;
  return it->second.mapping->At(entry.arena_offset + inside, piece.size);
}

Code Link::RunRead(const Slice& slice) {
  size_t index = 0;
  uint32_t offset = 0;
  while (index < slice.pieces.size()) {
    room_.moves.clear();
    size_t bytes = 0;
    while (index < slice.pieces.size() && bytes < kStepBytes && room_.moves.size() < kStepMoves) {
      const Piece& piece = slice.pieces[index];
      const std::byte* mapped = MappedAt(room_.entries[piece.key], piece);
      const auto size =
          static_cast<uint32_t>(std::min<uint64_t>(piece.size - offset, kStepBytes - bytes));
      room_.moves.push_back({reinterpret_cast<std::byte*>(piece.local + offset),
                             mapped == nullptr ? nullptr : mapped + offset, piece.remote + offset,
                             size});
      bytes += size;
      offset += size;
      if (offset == piece.size) {
        ++index;
        offset = 0;
      }
    }
    const Code code = PullStep(peer_->fixed().origin, room_.moves, slice.deadline);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

// --- writing

void Link::SendWrites(Time now) {
  while (state_ == State::kOpen && writes_.size > 0 && at_owner_ < kWindow) {
    const uint16_t index = writes_.head;
    Slot& slot = slots_[index];
    slot.id = next_id_++ * kSlots + index;
    if (!BuildWrite(slot)) return;
    const size_t size = EncodeWrite(room_.write, room_.buffer.data());
    const int error = Send(socket_.get(), {room_.buffer.data(), size});
    // No room: each answer makes some, and if none is to come it is tried again soon. Any other error: the end of the
    // connection is on its way.
    if (error != 0) {
      if (at_owner_ == 0) retry_at_ = now + kSendAgain;
      return;
    }
    ++at_owner_;
    MoveTo(index, SlotState::kSent);
    due_ = std::min(due_, DueOf(slot));
    if (exports_due_ == kNever && !exported_.empty()) exports_due_ = now + kExportsLook;
  }
}

bool Link::BuildWrite(const Slot& slot) {
  Write& write = room_.write;
  write.id = slot.id;
  write.deadline = slot.slice.deadline.time_since_epoch().count();
  write.sources.clear();
  write.keys.assign(slot.slice.keys.begin(), slot.slice.keys.end());
  write.pieces.clear();
  for (const Piece& piece : slot.slice.pieces) {
    bool later = false;
    const uint16_t source = SourceOf(piece, &later);
    if (later) return false;
    write.pieces.push_back(
        {piece.remote, piece.local, piece.size, static_cast<uint16_t>(piece.key), source});
  }
  return true;
}

uint16_t Link::SourceOf(const Piece& piece, bool* later) {
  WireSource found;
  if (!room_.own.Find(piece.local, piece.size, &found)) return kNoSource;
  auto& sources = room_.write.sources;
  for (size_t i = sources.size(); i-- > 0;) {
    if (sources[i].arena == found.arena) return static_cast<uint16_t>(i);
  }
  if (sources.size() == kSourcesMax || !Export(found, later)) return kNoSource;
  sources.push_back(found);
  return static_cast<uint16_t>(sources.size() - 1);
}

// True when the owner has the arena. *later: not now, its queue is full.
bool Link::Export(const WireSource& source, bool* later) {
  if (exported_.contains(source.arena)) return true;
  const auto arena = room_.env.arenas.Get(source.arena);
  if (arena == nullptr || exported_.size() >= kArenasMax) return false;
  const UniqueFd fd = OpenForReading(arena->fd());
  if (!fd.valid()) return false;
  ArenaMessage message;
  message.number = source.arena;
  message.size = arena->size();
  const int error = Send(socket_.get(), BytesOf(message), fd.get());
  *later = error != 0;
  if (error == 0) exported_.insert(source.arena);
  return error == 0;
}

void Link::CheckExports(Time now) {
  if (now < exports_due_) return;
  exports_due_ = exported_.empty() ? kNever : now + kExportsLook;
  for (auto it = exported_.begin(); it != exported_.end();) {
    if (room_.env.arenas.Get(*it) != nullptr) {
      ++it;
      continue;
    }
    ArenaMessage gone;
    gone.kind = Kind::kDropArena;
    gone.number = *it;
    if (Send(socket_.get(), BytesOf(gone)) != 0) return;  // at the next look
    it = exported_.erase(it);
  }
}

}  // namespace moonpool::local
