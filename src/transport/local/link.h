#pragma once

// One lane's connection to one peer, with the slices that it carries.
//
// Reads are run by the lane's thread, one whole slice at a time. Writes are requests that the owner
// answers; a write that was sent completes by the owner's answer, by the end of the connection (the
// owner closes between steps only, so nothing is stored afterwards), by the end of the owner's
// process, or kSettle after its deadline, which the owner enforces with fenced steps.
//
// Bounds: kSlots slices, of which kWindow writes are at the owner.
//
// Threads: thread-bound to its lane.

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/fd.h"
#include "memory/arena_set.h"
#include "transport/local/peer.h"
#include "transport/local/pull.h"
#include "transport/local/server.h"
#include "transport/local/socket.h"
#include "transport/local/wire.h"
#include "transport/transport.h"

namespace moonpool::local {

// A step in the kernel that began before the deadline has ended by then, on any machine that
// schedules at all.
inline constexpr Duration kSettle = std::chrono::milliseconds(50);

// Which local memory lies in arenas of our own; remembers the last one. Forget() before the memory
// may go, that is at the end of each call into the lane.
class OwnArenas {
 public:
  explicit OwnArenas(memory::ArenaSet& arenas) : arenas_(arenas) {}
  bool Find(uint64_t address, uint64_t size, WireSource* source);
  void Forget() { last_.reset(); }

 private:
  memory::ArenaSet& arenas_;
  std::shared_ptr<const memory::Arena> last_;
  WireSource last_source_;
};

// What the links of one lane share.
struct LaneRoom {
  LaneRoom(const transport::Environment& env_in, Counters& counters_in, const Self& self_in);
  int poller = -1;  // the lane's epoll descriptor, borrowed
  const transport::Environment& env;
  Counters& counters;
  const Self& self;
  OwnArenas own;
  std::vector<BoardView::Entry> entries;  // of the slice being read
  std::vector<Move> moves;
  Write write;
  std::array<char, kMessageMax> buffer;
};

class Link {
 public:
  static constexpr size_t kSlots = 64;
  static constexpr size_t kWindow = 16;

  Link(LaneRoom& room, std::shared_ptr<PeerState> peer);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const PeerState* peer() const { return peer_.get(); }
  bool released() const { return peer_->released(); }
  bool usable() const { return state_ <= State::kOpen; }  // takes slices
  bool dead() const { return state_ == State::kDead; }
  size_t in_flight() const { return kSlots - free_.size; }

  // An event of the lane's poller carries the link's address, and this bit if it is the end of the
  // peer's process: then OnPeerEnded is to be called, else OnReadable.
  static constexpr uint64_t kEndedBit = 1;

  // False: no room.
  bool Accept(const transport::Slice& slice, Time now);
  // Connects and greets; to be called again when due.
  void Connect(Time now);
  // Connects, or sends what there was no room for, if it is time.
  void Retry(Time now);
  void OnReadable(Time now);
  void OnPeerEnded(Time now);
  // Completes what is overdue.
  void Expire(Time now);
  void SendWrites(Time now);
  // Runs one read. Returns its bytes, or 0 when there is none to run or it is larger than `room`
  // allows (anything is allowed when `first`).
  uint64_t ReadOne(uint64_t room, bool first);
  bool CanRead() const { return state_ == State::kOpen && reads_.size > 0 && !waiting_; }
  // Fails what has not been sent; the rest completes when it is certain.
  void Drain(Code code, std::string_view cause);
  bool Cancel(uint64_t cookie);
  size_t Harvest(std::span<transport::Completion> out);
  size_t done() const { return done_.size; }
  // When Expire, Connect or CheckExports has something to do, at the earliest.
  Time due() const { return std::min({due_, retry_at_, exports_due_}); }
  // Tells the owner which of our arenas have gone.
  void CheckExports(Time now);

 private:
  enum class State : uint8_t { kConnecting, kGreeting, kOpen, kDraining, kDead };
  enum class SlotState : uint8_t { kFree, kRead, kWrite, kSent, kDone };
  static constexpr uint16_t kNil = 0xffff;
  struct List {
    uint16_t head = kNil;
    uint16_t tail = kNil;
    uint16_t size = 0;
  };
  struct Slot {
    transport::Slice slice;
    uint64_t id = 0;  // of the request
    Code code = Code::kOk;
    transport::Phase phase = transport::Phase::kNone;
    SlotState state = SlotState::kFree;
    bool repeated = false;  // the owner asked once to send the arena again
    uint16_t before = kNil;
    uint16_t after = kNil;
  };
  struct Mapped {
    bool requested = false;
    std::shared_ptr<const Mapping> mapping;  // null: to be asked for, or not to be had
  };

  List& ListOf(SlotState state);
  void MoveTo(uint16_t index, SlotState to);
  void Finish(uint16_t index, Code code, transport::Phase phase = transport::Phase::kData);
  void FailAll(Code code, std::string_view cause, bool sent_too);
  void Die(Code code, std::string_view cause);
  void Watch(int fd, uint64_t bit) const;
  void Unwatch(UniqueFd& fd) const;
  transport::Phase phase() const;
  Time DueOf(const Slot& slot) const;

  bool HandlePacket(Packet packet);
  bool HandleReply(const Reply& reply);
  bool HandleArena(const ArenaMessage& message, UniqueFd fd);

  bool PrepareArenas();
  Code CheckRead(const transport::Slice& slice);
  Code RunRead(const transport::Slice& slice);
  const std::byte* MappedAt(const BoardView::Entry& entry, const transport::Piece& piece);
  bool BuildWrite(const Slot& slot);
  uint16_t SourceOf(const transport::Piece& piece, bool* later);
  bool Export(const WireSource& source, bool* later);

  LaneRoom& room_;
  const std::shared_ptr<PeerState> peer_;
  State state_ = State::kConnecting;
  UniqueFd socket_;
  UniqueFd pidfd_;
  uint64_t next_id_ = 0;
  size_t at_owner_ = 0;   // requests without an answer yet, completed or not
  bool waiting_ = false;  // the first read waits for an arena's descriptor
  Time due_ = kNever;
  Time retry_at_ = kNever;             // of Retry
  Time exports_due_ = kNever;          // of CheckExports
  std::map<uint32_t, Mapped> arenas_;  // the peer's
  std::set<uint32_t> exported_;        // ours that the peer has
  List free_, reads_, writes_, sent_, done_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace moonpool::local
