// The initiator's side, met by a hand-made owner that answers what and when the test says. Time is
// the test's, too.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "net/socket.h"
#include "testing/manual_clock.h"
#include "testing/patience.h"
#include "transport/tcp/clock_relation.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {
namespace {

using std::chrono::milliseconds;
using transport::Op;
using transport::Piece;
using transport::Slice;

constexpr transport::NodeId kOwner{1, 2};
constexpr size_t kBytes = 64;

class HandMadeOwner {
 public:
  HandMadeOwner() {
    auto listener = net::Listen("127.0.0.1", 0);
    EXPECT_TRUE(listener.ok()) << listener.status().ToString();
    if (listener.ok()) listener_ = std::move(listener).value();
  }
  transport::PeerOptions address() const {
    return {"owner", kOwner, "127.0.0.1", EncodeAddress({net::LocalPort(listener_.get()), kOwner})};
  }
  // Takes the next connection and its hello.
  bool Accept() {
    if (!net::WaitFor(real_, listener_.get(), POLLIN, Soon()).ok()) return false;
    auto accepted = net::Accept(listener_.get());
    if (!accepted.ok()) return false;
    fd_ = std::move(accepted).value();
    std::array<std::byte, kHelloBytes> hello;
    return Receive(hello) && DecodeHello(hello).ok();
  }
  void SendWelcome(const BootId& boot, Time clock) {
    Welcome welcome;
    welcome.version = kVersionMax;
    welcome.owner = kOwner;
    welcome.connection = 7;
    welcome.boot = boot;
    welcome.clock = clock.time_since_epoch().count();
    std::array<std::byte, kWelcomeBytes> out;
    EncodeWelcome(welcome, out);
    Send(out);
  }
  // The next request; the payload of a write is taken, too.
  std::optional<Head> Take() {
    std::array<std::byte, kHeadBytes> bytes;
    Request request;
    if (!Receive(bytes) || !DecodeHead(bytes, &request)) return std::nullopt;
    std::vector<std::byte> rest(request.head.op == Op::kWrite ? request.head.bytes + kTrailerBytes
                                                              : 0);
    if (!Receive(rest)) return std::nullopt;
    return request.head;
  }
  void Answer(const Head& head) {
    Reply reply;
    reply.op = head.op;
    reply.sequence = head.sequence;
    reply.bytes = head.op == Op::kRead ? head.bytes : 0;
    std::vector<std::byte> out(kReplyBytes);
    EncodeReply(reply, out.data());
    if (head.op == Op::kRead) {
      out.resize(kReplyBytes + head.bytes + kTrailerBytes);
      EncodeTrailer({}, out.data() + kReplyBytes + head.bytes);
    }
    Send(out);
  }
  void CutAndRefuse() {
    listener_.Reset();
    fd_.Reset();
  }

 private:
  Time Soon() const { return After(real_.Now(), testing::Patience()); }
  void Send(std::span<const std::byte> bytes) {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  bool Receive(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      if (!net::WaitFor(real_, fd_.get(), POLLIN, Soon()).ok()) return false;
      const ssize_t n = recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }

  const SystemClock real_;
  UniqueFd listener_;
  UniqueFd fd_;
};

struct Initiator {
  Initiator() {
    transport::TransportOptions options;
    options.bind_host = "127.0.0.1";
    options.checksum = false;
    auto made = MakeFactory().create({clock, log, regions, arenas, {3, 4}}, options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    transport = std::move(made).value();
    lane = std::move(transport->OpenLane()).value();
  }
  // Opens a peer while the owner answers; `boot` says which machine the owner claims to be.
  bool Open(HandMadeOwner& owner, const BootId& boot) {
    const Time now = clock.Now();
    Thread answering("owner", [&owner, &boot, now](const std::stop_token&) {
      if (owner.Accept()) owner.SendWelcome(boot, now);
    });
    auto opened = transport->OpenPeer(owner.address(), kNever);
    answering.Join();
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    if (opened.ok()) peer = std::move(opened).value();
    return peer != nullptr;
  }
  void Post(uint64_t cookie, Op op, Time deadline = kNever) {
    const Slice slice{cookie, op, deadline, std::span(&piece, 1), std::span(&key, 1), kBytes};
    EXPECT_EQ(lane->Post(*peer, std::span(&slice, 1)), 1u);
  }
  std::optional<transport::Completion> Poll() {
    transport::Completion done;
    if (lane->Poll(std::span(&done, 1), clock.Now()) == 0) return std::nullopt;
    return done;
  }
  // The next completion; the manual clock stands still.
  std::optional<transport::Completion> Next() {
    const SystemClock real;
    const Time limit = After(real.Now(), testing::Patience());
    while (real.Now() < limit) {
      if (auto done = Poll()) return done;
    }
    return std::nullopt;
  }

  testing::ManualClock clock;
  Logger log{LogLevel::kOff};
  memory::RegionTable regions{clock};
  memory::ArenaSet arenas;
  std::vector<std::byte> memory{kBytes};
  RegionKey key;
  Piece piece{reinterpret_cast<uint64_t>(memory.data()), 4096, kBytes, 0};
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Peer> peer;
  std::unique_ptr<transport::Lane> lane;
};

// The write is answered late, but answers to others show that the owner is alive.
TEST(TcpLink, CancelledWriteBreaksNoConnectionOnWhichOthersGoOn) {
  HandMadeOwner owner;
  Initiator here;
  ASSERT_TRUE(here.Open(owner, ReadBootId()));
  here.Post(1, Op::kWrite);
  const auto write = owner.Take();
  ASSERT_TRUE(write.has_value());
  here.lane->Cancel(1);
  for (uint64_t cookie = 2; cookie < 22; ++cookie) {
    here.Post(cookie, Op::kRead);
    const auto read = owner.Take();
    ASSERT_TRUE(read.has_value());
    here.clock.Advance(milliseconds(15));
    owner.Answer(*read);
    const auto done = here.Next();
    ASSERT_TRUE(done.has_value());
    EXPECT_EQ(done->cookie, cookie);
    ASSERT_EQ(CodeName(done->code), CodeName(Code::kOk));
  }
  owner.Answer(*write);
  const auto done = here.Next();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->cookie, 1u);
  EXPECT_EQ(CodeName(done->code), CodeName(Code::kOk));
}

// Write 1 is at the owner, who has not answered, and cancelled.
bool BeginAndCancelWrite(HandMadeOwner& owner, Initiator& here) {
  if (!here.Open(owner, ReadBootId())) return false;
  here.Post(1, Op::kWrite);
  if (!owner.Take().has_value()) return false;
  here.lane->Cancel(1);
  return true;
}

TEST(TcpLink, CancelledWriteIsFencedOnceNothingMoves) {
  HandMadeOwner owner;
  Initiator here;
  ASSERT_TRUE(BeginAndCancelWrite(owner, here));
  EXPECT_LE(here.lane->wake_by(), After(here.clock.Now(), milliseconds(20)));
  owner.CutAndRefuse();
  here.clock.Advance(milliseconds(20));
  const auto done = here.Next();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(CodeName(done->code), CodeName(Code::kCancelled));
}

TEST(TcpLink, CancelledWriteIsFencedAfterASecondWhateverMoves) {
  HandMadeOwner owner;
  Initiator here;
  ASSERT_TRUE(BeginAndCancelWrite(owner, here));
  for (uint64_t cookie = 2; cookie < 68; ++cookie) {
    here.Post(cookie, Op::kRead);
    const auto read = owner.Take();
    ASSERT_TRUE(read.has_value());
    here.clock.Advance(milliseconds(15));
    owner.Answer(*read);
    const auto done = here.Next();
    ASSERT_TRUE(done.has_value());
    ASSERT_EQ(CodeName(done->code), CodeName(Code::kOk));
  }
  here.clock.Advance(milliseconds(10));  // 1000 in all
  EXPECT_FALSE(here.Poll().has_value());
  EXPECT_FALSE(owner.Take().has_value()) << "the connection goes on";
  owner.CutAndRefuse();
  const SystemClock real;
  const Time limit = After(real.Now(), testing::Patience());
  std::optional<transport::Completion> done;
  while (!done && real.Now() < limit) {
    here.clock.Advance(milliseconds(1));  // until the next attempt
    done = here.Poll();
  }
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(CodeName(done->code), CodeName(Code::kCancelled));
}

// A refusal from another host proves nothing: the owner may still store.
TEST(TcpLink, RefusalByAnotherHostDoesNotEndAWriteBeforeItsDeadline) {
  HandMadeOwner owner;
  Initiator here;
  BootId other = ReadBootId();
  other[0] ^= 1;
  ASSERT_TRUE(here.Open(owner, other));
  const Time deadline = After(here.clock.Now(), std::chrono::seconds(10));
  here.Post(1, Op::kWrite, deadline);
  ASSERT_TRUE(owner.Take().has_value());
  owner.CutAndRefuse();
  const SystemClock real;
  const Time limit = After(real.Now(), testing::Patience());
  bool refused = false;
  while (!refused && real.Now() < limit) {
    ASSERT_FALSE(here.Poll().has_value());
    refused = here.peer->last_error().ToString().find("connect:") != std::string::npos;
  }
  EXPECT_TRUE(refused) << here.peer->last_error().ToString();
  here.clock.Advance(std::chrono::seconds(5));  // attempts go on meanwhile
  for (int i = 0; i < 10; ++i) ASSERT_FALSE(here.Poll().has_value());
  here.clock.AdvanceTo(deadline + milliseconds(100));
  const auto done = here.Next();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(CodeName(done->code), CodeName(Code::kTimedOut));
}

TEST(TcpLink, RefusalByThisHostEndsAWriteAtOnce) {
  HandMadeOwner owner;
  Initiator here;
  ASSERT_TRUE(here.Open(owner, ReadBootId()));
  here.Post(1, Op::kWrite, After(here.clock.Now(), std::chrono::hours(1)));
  ASSERT_TRUE(owner.Take().has_value());
  owner.CutAndRefuse();
  const auto done = here.Next();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(CodeName(done->code), CodeName(Code::kUnavailable));
}

TEST(TcpLink, CloseEndsAnOpenPeerThatWaitsForAnAnswer) {
  HandMadeOwner silent;
  Initiator here;
  Status status;
  std::atomic<bool> ended{false};  // pairs: stored by the thread when it has the status
  Thread opening("opening", [&](const std::stop_token&) {
    status = here.transport->OpenPeer(silent.address(), kNever).status();
    ended.store(true, std::memory_order_release);
  });
  EXPECT_TRUE(silent.Accept());
  here.transport->Close();
  const SystemClock real;
  const Time limit = After(real.Now(), testing::Patience());
  while (!ended.load(std::memory_order_acquire) && real.Now() < limit) std::this_thread::yield();
  silent.CutAndRefuse();  // so that a thread that waits still ends, with another code
  opening.Join();
  EXPECT_EQ(CodeName(status.code()), CodeName(Code::kCancelled)) << status.ToString();
}

}  // namespace
}  // namespace moonpool::tcp
