// The owner's side, met by a hand-made initiator that speaks the wire byte by byte.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/crc32c.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "net/socket.h"
#include "net/test_support.h"
#include "testing/patience.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {
namespace {

using transport::Op;
using transport::Piece;
using transport::Slice;

struct Owner {
  explicit Owner(uint32_t connections_max = 4096) {
    transport::TransportOptions options;
    options.bind_host = "127.0.0.1";
    options.connections_max = connections_max;
    const transport::Environment env{clock, log, regions, arenas, {1, 2}};
    auto made = MakeFactory().create(env, options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    transport = std::move(made).value();
    port = DecodeAddress(transport->Address())->port;
    auto registered = regions.Register(
        {.address = reinterpret_cast<uint64_t>(memory.data()), .size = memory.size()});
    EXPECT_TRUE(registered.ok());
    key = registered->key;
  }
  Time Soon() const { return After(clock.Now(), testing::Patience()); }

  SystemClock clock;
  Logger log{LogLevel::kOff};
  memory::RegionTable regions{clock};
  memory::ArenaSet arenas;
  std::vector<std::byte> memory{8192};
  RegionKey key;
  std::unique_ptr<transport::Transport> transport;
  uint16_t port = 0;
};

class Caller {
 public:
  explicit Caller(Owner& owner) : owner_(owner) {
    const auto to = net::NumericEndpoint("127.0.0.1", owner.port);
    auto fd = net::Connect(owner.clock, std::span(&*to, 1), owner.Soon());
    EXPECT_TRUE(fd.ok());
    if (fd.ok()) fd_ = std::move(fd).value();
  }
  void Send(std::span<const std::byte> bytes) {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // False when the owner closes first.
  bool Receive(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      if (!net::WaitFor(owner_.clock, fd_.get(), POLLIN, owner_.Soon()).ok()) return false;
      const ssize_t n = recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }
  bool Closed() {
    std::byte byte;
    return !Receive(std::span(&byte, 1));
  }
  void SayHello(Hello hello) {
    std::array<std::byte, kHelloBytes> bytes;
    EncodeHello(hello, bytes);
    Send(bytes);
  }
  Welcome ReceiveWelcome() {
    std::array<std::byte, kWelcomeBytes> bytes{};
    EXPECT_TRUE(Receive(bytes));
    auto welcome = DecodeWelcome(bytes);
    EXPECT_TRUE(welcome.ok()) << welcome.status().ToString();
    return welcome.ok() ? *welcome : Welcome{};
  }
  Welcome Greet(uint64_t fence = 0) {
    Hello hello;
    hello.owner = {1, 2};
    hello.fence = fence;
    SayHello(hello);
    return ReceiveWelcome();
  }

 private:
  Owner& owner_;
  UniqueFd fd_;
};

// The message of a write of `payload` to the beginning of the owner's memory.
std::vector<std::byte> WriteMessage(const Owner& owner, std::span<const std::byte> payload,
                                    Time deadline = kNever) {
  const Piece piece{0, reinterpret_cast<uint64_t>(owner.memory.data()),
                    static_cast<uint32_t>(payload.size()), 0};
  Slice slice;
  slice.op = Op::kWrite;
  slice.pieces = std::span(&piece, 1);
  slice.keys = std::span(&owner.key, 1);
  slice.bytes = payload.size();
  Head head;
  head.op = Op::kWrite;
  head.checksum = true;
  head.sequence = 1;
  if (deadline != kNever) head.deadline = deadline.time_since_epoch().count();
  head.bytes = slice.bytes;
  std::vector<std::byte> out(kHeadBytes + payload.size() + kTrailerBytes);
  EncodeRequest(head, slice, out.data());
  std::memcpy(out.data() + kHeadBytes, payload.data(), payload.size());
  EncodeTrailer({Crc32c(0, payload.data(), payload.size()), Code::kOk},
                out.data() + kHeadBytes + payload.size());
  return out;
}

TEST(TcpServer, HelloOfAnotherVersionIsToldOurs) {
  Owner owner;
  Caller caller(owner);
  Hello hello;
  hello.version_min = hello.version_max = 77;
  caller.SayHello(hello);
  const Welcome welcome = caller.ReceiveWelcome();
  EXPECT_EQ(welcome.code, Code::kUnsupported);
  EXPECT_EQ(welcome.version_min, kVersionMin);
  EXPECT_EQ(welcome.version_max, kVersionMax);
  EXPECT_TRUE(caller.Closed());
}

TEST(TcpServer, HelloToAnotherProcessIsStaleAndTellsWhoAnswers) {
  Owner owner;
  Caller caller(owner);
  Hello hello;
  hello.owner = {1, 3};
  caller.SayHello(hello);
  const Welcome welcome = caller.ReceiveWelcome();
  EXPECT_EQ(welcome.code, Code::kStale);
  EXPECT_EQ(welcome.owner, (transport::NodeId{1, 2}));
  EXPECT_TRUE(caller.Closed());
}

TEST(TcpServer, WriteThatComesByteByByteIsStoredAndAnswered) {
  Owner owner;
  Caller caller(owner);
  caller.Greet();
  const std::vector<std::byte> payload(300, std::byte{0x5a});
  const std::vector<std::byte> message = WriteMessage(owner, payload);
  for (const std::byte& byte : message) caller.Send(std::span(&byte, 1));
  std::array<std::byte, kReplyBytes> bytes{};
  ASSERT_TRUE(caller.Receive(bytes));
  const auto reply = DecodeReply(bytes);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->code, Code::kOk);
  EXPECT_EQ(reply->sequence, 1u);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), owner.memory.begin()));
}

TEST(TcpServer, FenceIsAnsweredOnceTheOldConnectionStoresNoMore) {
  Owner owner;
  Caller old(owner);
  const uint64_t id = old.Greet().connection;
  const std::vector<std::byte> payload(4096, std::byte{0x5a});
  const std::vector<std::byte> message = WriteMessage(owner, payload);
  const std::span<const std::byte> all(message);
  old.Send(all.first(kHeadBytes + 1000));

  Caller next(owner);
  EXPECT_EQ(next.Greet(id).fenced, id);
  // From here on not one byte changes, whatever the old connection says.
  const std::vector<std::byte> before = owner.memory;
  EXPECT_TRUE(old.Closed());
  EXPECT_EQ(owner.memory, before);
  // An unknown one is fenced, too: it is no more.
  Caller last(owner);
  EXPECT_EQ(last.Greet(id).fenced, id);
}

TEST(TcpServer, WrongChecksumIsCorruptAndTheConnectionLivesOn) {
  Owner owner;
  Caller caller(owner);
  caller.Greet();
  const std::vector<std::byte> payload(100, std::byte{1});
  std::vector<std::byte> message = WriteMessage(owner, payload);
  message[kHeadBytes + 50] ^= std::byte{1};
  std::array<std::byte, kReplyBytes> bytes{};
  caller.Send(message);
  ASSERT_TRUE(caller.Receive(bytes));
  EXPECT_EQ(DecodeReply(bytes)->code, Code::kCorrupt);
  EXPECT_EQ(owner.transport->Metrics().checksum_errors, 1u);
  caller.Send(WriteMessage(owner, payload));
  ASSERT_TRUE(caller.Receive(bytes));
  EXPECT_EQ(DecodeReply(bytes)->code, Code::kOk);
}

TEST(TcpServer, ChecksumThatComesAfterTheDeadlineIsLateNotWrong) {
  Owner owner;
  Caller caller(owner);
  caller.Greet();
  const std::vector<std::byte> payload(100, std::byte{1});
  const Time deadline = After(owner.clock.Now(), std::chrono::milliseconds(300));
  std::vector<std::byte> message = WriteMessage(owner, payload, deadline);
  message[kHeadBytes + 50] ^= std::byte{1};
  const std::span<const std::byte> all(message);
  caller.Send(all.first(all.size() - kTrailerBytes));
  const auto stored = [&] { return owner.transport->Metrics().bytes_received == payload.size(); };
  ASSERT_TRUE(net::testing::Eventually(stored));
  ASSERT_TRUE(net::testing::Eventually([&] { return owner.clock.Now() >= deadline; }));
  caller.Send(all.last(kTrailerBytes));
  std::array<std::byte, kReplyBytes> bytes{};
  ASSERT_TRUE(caller.Receive(bytes));
  EXPECT_EQ(DecodeReply(bytes)->code, Code::kTimedOut);
  EXPECT_EQ(owner.transport->Metrics().checksum_errors, 0u);
}

TEST(TcpServer, MalformedHeadEndsThatConnectionOnly) {
  Owner owner;
  Caller good(owner);
  good.Greet();
  Caller bad(owner);
  bad.Greet();
  bad.Send(std::vector<std::byte>(kHeadBytes, std::byte{7}));
  EXPECT_TRUE(bad.Closed());
  EXPECT_EQ(owner.transport->Metrics().connections_rejected, 1u);
  good.Send(WriteMessage(owner, std::vector<std::byte>(10)));
  std::array<std::byte, kReplyBytes> bytes{};
  EXPECT_TRUE(good.Receive(bytes));
}

TEST(TcpServer, OldestUnfinishedHandshakeMakesRoom) {
  Owner owner(3);
  Caller served(owner);
  served.Greet();
  Caller silent(owner);
  Caller later(owner);
  Caller wanted(owner);
  EXPECT_EQ(wanted.Greet().code, Code::kOk);
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(later.Greet().code, Code::kOk);
  // All three are served now: a fourth finds no room, and takes none.
  Caller fourth(owner);
  EXPECT_TRUE(fourth.Closed());
  served.Send(WriteMessage(owner, std::vector<std::byte>(10)));
  std::array<std::byte, kReplyBytes> bytes{};
  EXPECT_TRUE(served.Receive(bytes));
}

TEST(TcpServer, HalfOfTheDescriptorsBoundTheConnections) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_cur < 256) GTEST_SKIP() << "fewer than 256 descriptors: " << before.rlim_cur;
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Owner owner;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<std::unique_ptr<Caller>> served;
  for (int i = 0; i < 32; ++i) {
    served.push_back(std::make_unique<Caller>(owner));
    ASSERT_EQ(served.back()->Greet().code, Code::kOk);
  }
  Caller next(owner);
  EXPECT_TRUE(next.Closed());
}

TEST(TcpServer, IdleConnectionsCostNoProcessorTime) {
  Owner owner;
  Caller caller(owner);
  caller.Greet();
  caller.Send(WriteMessage(owner, std::vector<std::byte>(10)));
  std::array<std::byte, kReplyBytes> bytes{};
  ASSERT_TRUE(caller.Receive(bytes));
  const auto used = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  const auto before = used();
  poll(nullptr, 0, 500);
  EXPECT_LT(used() - before, std::chrono::milliseconds(50));
}

// One connection for each lane: the one of OpenPeer is used by the first.
TEST(TcpServer, SocketsArePerLane) {
  Owner owner;
  Owner here;
  auto peer = here.transport->OpenPeer({"owner", {1, 2}, "127.0.0.1", owner.transport->Address()},
                                       owner.Soon());
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  std::vector<std::unique_ptr<transport::Lane>> lanes;
  for (uint64_t n = 1; n <= 3; ++n) {
    lanes.push_back(std::move(here.transport->OpenLane()).value());
    for (int i = 0; i < 100; ++i) {
      const Piece piece{reinterpret_cast<uint64_t>(here.memory.data()),
                        reinterpret_cast<uint64_t>(owner.memory.data()), 64, 0};
      Slice slice;
      slice.pieces = std::span(&piece, 1);
      slice.keys = std::span(&owner.key, 1);
      slice.bytes = 64;
      ASSERT_EQ(lanes.back()->Post(**peer, std::span(&slice, 1)), 1u);
      transport::Completion done;
      while (lanes.back()->Poll(std::span(&done, 1), here.clock.Now()) == 0) {
      }
      ASSERT_EQ(done.code, Code::kOk);
    }
    EXPECT_EQ(here.transport->Metrics().connections_open, n);
  }
}

}  // namespace
}  // namespace moonpool::tcp
