#pragma once

// Link: what one lane has open to one peer: at most one connection, the slices that wait for it and
// those that are under way on it.
//
// A slice is *queued* until its message is begun, then *begun* until the owner has answered. A
// queued slice can be given up at once. A begun read, too: only this thread stores into its
// memory, so what still arrives is received into a sink. A begun write is over when that is certain
// (rule 2 of transport.h): the owner has answered; or its deadline and a margin have passed; or its
// connection broke and the owner (asked by the hello of a new connection, which names the old one)
// says that it has stopped it; or the process is gone (connection refused by the host that we share
// with it, another process answers). Such writes are *fencing*.
//
// A slice that was completed while its message or its answer is still on the wire keeps its place
// (`finished`): what is left of a write's payload is padded with zeros, which the owner, past the
// deadline, does not store.
//
// Invariants
//   1. `writes_` and `reads_` are in the order of their messages; the owner answers each in order.
//   2. At most one message is partly sent: the last that was begun.
//   3. No message is begun while `fencing_` is not empty: a new connection has fenced the old one
//      before it carries anything.
//
// Threads: thread-bound, to the lane's.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.h"
#include "transport/tcp/clock_relation.h"
#include "transport/tcp/gather.h"
#include "transport/tcp/peer.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

namespace moonpool::tcp {

// What a lane's links borrow from it.
struct LaneContext {
  Shared& shared;
  int epoll = -1;
  std::vector<transport::Completion> done;  // to be handed out by Poll
  std::vector<std::byte> zeros;             // sent for what must not be read any more
  std::vector<std::byte> sink;              // receives what nobody wants any more

  explicit LaneContext(Shared& shared_in) : shared(shared_in) {}
  void* Zeros();
  void* Sink();
};

class Link {
 public:
  // Slices under way on one link, and their bytes: what fills the sockets' buffers on both sides
  // and keeps the owner busy while answers travel, and no more, so that a latency slice does not
  // wait behind much.
  static constexpr size_t kFlightsMax = 1024;
  static constexpr uint64_t kFlightBytesMax = 8 << 20;
  // After the deadline of a write: what a copy that the kernel began before it may still take.
  static constexpr Duration kMargin = std::chrono::milliseconds(20);

  Link(LaneContext& lane, std::shared_ptr<PeerState> peer);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  size_t Post(std::span<const transport::Slice> slices);
  // Sends and receives what can be without waiting, within a budget; true if anything happened.
  bool Progress(Time now, bool readable, bool writable);
  // Looks at deadlines and timers. Call it when next_time() has come.
  void OnTime(Time now);
  bool Cancel(uint64_t cookie, Time now);
  void Detach(Time now);

  const PeerState& peer() const { return *peer_; }
  Time next_time() const { return next_time_; }
  bool busy() const {
    return used_ > 0 || state_ == State::kConnecting || state_ == State::kGreeting;
  }
  bool blocked() const { return blocked_; }    // waits for the descriptor to be writable
  bool runnable() const { return runnable_; }  // stopped by its budget
  bool connecting() const { return state_ == State::kConnecting; }

 private:
  enum class State { kIdle, kConnecting, kGreeting, kReady };
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Flight {
    transport::Slice slice;
    uint64_t sequence = 0;
    uint32_t next = kNone;
    bool sent = false;       // all of its message
    bool finished = false;   // its completion was given
    bool cancelled = false;  // begun write: asked for at cancelled_at
    Time cancelled_at{};
    Code failure = Code::kOk;  // found on this side; wins over the owner's answer
  };
  struct List {
    uint32_t head = kNone;
    uint32_t tail = kNone;
    bool empty() const { return head == kNone; }
  };
  // A payload in the batch that is being sent.
  struct Outgoing {
    uint32_t flight;
    size_t first;  // its ranges in out_
    size_t end;
    std::byte* trailer;  // in heads_, if it is part of the batch
  };

  void Push(List& list, uint32_t flight);
  uint32_t Pop(List& list);
  template <typename Keep>
  void Filter(List& list, Keep keep);
  uint32_t Take();
  void Free(uint32_t flight);
  void Complete(Flight& flight, Code code, transport::Phase phase);
  void CompleteAll(List& list, Code code, transport::Phase phase);
  void Wake(Time when) { next_time_ = std::min(next_time_, when); }
  void SetError(transport::Phase phase, const Status& status);

  // The connection's life (link.cc).
  void Open(Time now);
  void StartConnect(Time now);
  bool ProcessGone(int error) const;
  void FinishConnect(Time now);
  bool Greet(Time now);
  void Adopt(OpenConnection connection);
  void ConnectFailed(const Status& status, transport::Phase phase, bool process_gone, Time now);
  void Break(const Status& status, Time now);
  void CloseSocket();
  void Arm(bool write);
  bool StillAlive() const;
  bool Stalled(Time now) const;
  void ExpireQueued(Time now);
  void ExpireBegun(Time now);

  // Sending and receiving (link_io.cc).
  bool Send(Time now, size_t budget);
  bool BuildBatch(Time now);
  void Begin(uint32_t index);
  void Sent(size_t bytes);
  void BatchDone();
  void SendFault(size_t range);
  void PadOutgoing(uint32_t flight);
  bool Receive(Time now, size_t budget);
  bool ReceiveReplies(Time now, bool* drained);
  bool ReceivePayload(Time now, bool* drained);
  bool OnReply(const Reply& reply);
  bool FinishRead(Time now);
  void AbandonRead(Code code);
  bool BreakOnError(ssize_t result, Time now);

  LaneContext& lane_;
  const std::shared_ptr<PeerState> peer_;

  State state_ = State::kIdle;
  UniqueFd fd_;
  uint64_t connection_ = 0;
  ClockRelation clock_;
  bool armed_ = false;  // for writing
  bool blocked_ = false;
  bool runnable_ = false;
  bool detached_ = false;
  Time asked_{};  // when the connection was begun, then when the hello was sent
  Time next_attempt_ = kNever;
  Duration backoff_{};
  Time last_progress_{};
  Time next_time_ = kNever;

  std::vector<Flight> flights_;
  List free_;
  size_t used_ = 0;
  uint64_t bytes_ = 0;
  size_t finished_ = 0;  // flights that are finished and still have a place
  List queued_;
  List writes_;
  List reads_;
  List fencing_;
  uint64_t fence_ = 0;  // the connection that fencing_ was on

  uint64_t next_sequence_ = 1;
  Gather out_;
  std::vector<std::byte> heads_;
  std::vector<Outgoing> outgoing_;
  size_t outgoing_sent_ = 0;
  bool narrow_send_ = false;  // after a fault: one range at a time, to find the bad one
  uint32_t crc_out_ = 0;
  bool trailer_due_ = false;
  std::array<std::byte, kTrailerBytes> trailer_out_{};

  Gather in_;  // payload, trailer, next reply; used while a read's payload arrives
  bool receiving_ = false;
  size_t received_ = 0;  // in this turn
  bool crc_wanted_ = false;
  uint32_t crc_in_ = 0;
  std::array<std::byte, kTrailerBytes> trailer_in_{};
  std::array<std::byte, 32 * kReplyBytes> replies_{};
  size_t replies_bytes_ = 0;
};

}  // namespace moonpool::tcp
