// The conformance suite, and what is particular to this transport: the proof of the same host,
// memory of every kind, what the kernel refuses, and processes that freeze or die.

#include "transport/local/local.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "base/random.h"
#include "memory/arena.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "testing/child_process.h"
#include "testing/patience.h"
#include "testing/pattern.h"
#include "testing/shared_memory.h"
#include "transport/conformance.h"
#include "transport/local/socket.h"
#include "transport/local/wire.h"

MOONPOOL_TRANSPORT_CONFORMANCE(Local, [] {
  moonpool::transport::conformance::Params params;
  params.factory = moonpool::local::MakeFactory();
  params.cannot.redirect = "an abstract socket, no TCP port, and no network in between";
  params.dial = [](const std::string& address) {
    int error = 0;
    return moonpool::local::Connect(moonpool::local::DecodeAddress(address)->socket, &error);
  };
  return params;
});

namespace moonpool::local {
namespace {

using moonpool::testing::Channel;
using moonpool::testing::ChildProcess;
using moonpool::testing::FillPattern;
using moonpool::testing::Patience;
using moonpool::testing::PatternErrors;
using moonpool::testing::SharedMemory;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using transport::Completion;
using transport::Op;
using transport::Phase;
using transport::Piece;
using transport::Slice;

enum class Kind { kPlain, kArena };

// One process's part: a transport, a lane, memory.
class Node {
 public:
  explicit Node(const transport::TransportOptions& options = {})
      : transport_(Make(options)), lane_(*transport_->OpenLane()) {}
  ~Node() {
    lane_.reset();
    transport_.reset();
    for (const auto& [data, size] : plain_) munmap(data, size);
  }

  RegionInfo Memory(Kind kind, size_t size, Rights rights = Rights::kReadWrite) {
    if (kind == Kind::kArena) {
      std::shared_ptr<memory::Arena> arena = *memory::Arena::Create({.size = size});
      const uint32_t number = arenas_.Add(arena);
      kept_.push_back(arena);
      return *regions_.Register(
          {reinterpret_cast<uint64_t>(arena->data()), size, rights, number, 0});
    }
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    plain_.emplace_back(data, size);
    return *regions_.Register({reinterpret_cast<uint64_t>(data), size, rights});
  }

  transport::PeerOptions Address() const {
    return {"peer", id_, "127.0.0.1", transport_->Address()};
  }
  Result<std::unique_ptr<transport::Peer>> Open(const transport::PeerOptions& options) {
    return transport_->OpenPeer(options, After(clock_.Now(), Patience()));
  }

  // The same, for where it must succeed.
  std::unique_ptr<transport::Peer> MustOpen(const transport::PeerOptions& options) {
    auto peer = Open(options);
    if (!peer.ok()) {
      ADD_FAILURE() << peer.status().ToString();
      std::abort();
    }
    return *std::move(peer);
  }

  // Polls, sleeping as a caller of the lane would, until `wanted` completions came or `timeout`.
  std::vector<Completion> Wait(size_t wanted, Duration timeout = Patience()) {
    std::vector<Completion> done;
    const Time end = After(clock_.Now(), timeout);
    while (done.size() < wanted && clock_.Now() < end) {
      std::array<Completion, 16> out;
      const size_t count = lane_->Poll(out, clock_.Now());
      done.insert(done.end(), out.begin(), out.begin() + static_cast<ptrdiff_t>(count));
      if (count > 0 || done.size() >= wanted) continue;
      pollfd ready{lane_->event_fd(), POLLIN, 0};
      const Time until = std::min(end, lane_->wake_by());
      poll(&ready, 1, MillisUntil(clock_.Now(), until, 100));
    }
    return done;
  }

  transport::Transport& transport() { return *transport_; }
  transport::Lane& lane() { return *lane_; }
  memory::RegionTable& regions() { return regions_; }
  memory::ArenaSet& arenas() { return arenas_; }
  void ForgetArenas() { kept_.clear(); }
  transport::NodeId id() const { return id_; }

 private:
  std::unique_ptr<transport::Transport> Make(const transport::TransportOptions& options) {
    auto made = MakeFactory().create({clock_, log_, regions_, arenas_, id_}, options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return *std::move(made);
  }

  SystemClock clock_;
  Logger log_{LogLevel::kOff};
  memory::RegionTable regions_{clock_};
  memory::ArenaSet arenas_;
  transport::NodeId id_{SecureUint64(), SecureUint64()};
  std::vector<std::shared_ptr<memory::Arena>> kept_;
  std::vector<std::pair<void*, size_t>> plain_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Lane> lane_;
};

std::byte* Bytes(const RegionInfo& info) { return reinterpret_cast<std::byte*>(info.address); }

// A slice over two whole regions, with what it points to.
struct Whole {
  Whole(Op op, const RegionInfo& local, const RegionInfo& remote, Time deadline = kNever)
      : key(remote.key) {
    const auto size = static_cast<uint32_t>(std::min(local.size, remote.size));
    piece = {local.address, remote.address, size, 0};
    slice = {1, op, deadline, {&piece, 1}, {&key, 1}, size};
  }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  RegionKey key;
  Piece piece;
  Slice slice;
};

Code RunOne(Node& node, transport::Peer& peer, const Whole& whole) {
  EXPECT_EQ(node.lane().Post(peer, {&whole.slice, 1}), 1u);
  const auto done = node.Wait(1);
  return done.size() == 1 ? done[0].code : Code::kInternal;
}

// --- memory of every kind

class LocalKinds : public ::testing::TestWithParam<std::tuple<Op, Kind, Kind>> {};

TEST_P(LocalKinds, EveryByteArrivesAndNoOther) {
  const auto [op, here_kind, there_kind] = GetParam();
  Node here;
  Node there;
  constexpr size_t kSize = 300'000;  // more than a step, not a multiple of a page
  const RegionInfo local = here.Memory(here_kind, kSize + 64);
  const RegionInfo remote = there.Memory(there_kind, kSize + 64);
  auto peer = here.MustOpen(there.Address());
  const RegionInfo& from = op == Op::kRead ? remote : local;
  const RegionInfo& to = op == Op::kRead ? local : remote;
  FillPattern(Bytes(from), kSize + 64, 1);
  Whole whole(op, local, remote);
  whole.piece.local += 3;
  whole.piece.remote += 17;
  whole.piece.size = kSize;
  whole.slice.bytes = kSize;
  ASSERT_EQ(RunOne(here, *peer, whole), Code::kOk) << peer->last_error().ToString();
  const size_t skip_from = op == Op::kRead ? 17 : 3;
  const size_t skip_to = op == Op::kRead ? 3 : 17;
  EXPECT_EQ(PatternErrors(Bytes(to) + skip_to, kSize, 1, skip_from), "");
  EXPECT_EQ(Bytes(to)[skip_to - 1], std::byte{0});
  EXPECT_EQ(Bytes(to)[skip_to + kSize], std::byte{0});
}

INSTANTIATE_TEST_SUITE_P(All, LocalKinds,
                         ::testing::Combine(::testing::Values(Op::kRead, Op::kWrite),
                                            ::testing::Values(Kind::kPlain, Kind::kArena),
                                            ::testing::Values(Kind::kPlain, Kind::kArena)),
                         [](const auto& test) {
                           const auto name = [](Kind kind) {
                             return kind == Kind::kPlain ? "Plain" : "Arena";
                           };
                           return std::string(std::get<0>(test.param) == Op::kRead ? "Read"
                                                                                   : "Write") +
                                  name(std::get<1>(test.param)) + name(std::get<2>(test.param));
                         });

TEST(LocalTransport, ALocalRangeWithoutPagesIsAnErrorNotACrash) {
  Node here;
  Node there;
  const RegionInfo local = here.Memory(Kind::kPlain, 8192);
  const RegionInfo remote = there.Memory(Kind::kArena, 8192);
  auto peer = here.MustOpen(there.Address());
  mprotect(Bytes(local) + 4096, 4096, PROT_NONE);
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, remote)), Code::kInvalidArgument);
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, remote)), Code::kInvalidArgument);
  EXPECT_THAT(peer->last_error().message(), HasSubstr("local peer: data"));
}

bool Mapped(std::string_view name) {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos;
  return count > 0;
}

TEST(LocalTransport, AnArenaThatIsGoneIsUnmappedByItsPeers) {
  Node here;
  Node there;
  const RegionInfo local = here.Memory(Kind::kArena, 8192);
  const RegionInfo remote = there.Memory(Kind::kArena, 8192);
  auto peer = here.MustOpen(there.Address());
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, remote)), Code::kOk);
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, remote)), Code::kOk);
  ASSERT_TRUE(Mapped("moonpool-arena"));
  for (Node* node : {&here, &there}) {
    const RegionInfo& info = node == &here ? local : remote;
    ASSERT_TRUE(node->regions().Deregister(info.address, kNever).ok());
    node->arenas().Remove(info.arena);
    node->ForgetArenas();
  }
  const Time end = After(BootClock::now(), Patience());
  while (Mapped("moonpool-arena") && BootClock::now() < end) here.Wait(1, milliseconds(50));
  EXPECT_FALSE(Mapped("moonpool-arena"));
}

TEST(LocalTransport, ManySmallPiecesOfManyRegionsInOneSlice) {
  Node here;
  Node there;
  constexpr size_t kCount = 512;
  const RegionInfo local = here.Memory(Kind::kArena, kCount * 100);
  std::vector<RegionKey> keys;
  std::vector<Piece> pieces;
  std::vector<RegionInfo> remotes;
  for (uint32_t i = 0; i < kCount; ++i) {
    remotes.push_back(there.Memory(i % 2 == 0 ? Kind::kPlain : Kind::kArena, 4096));
    keys.push_back(remotes.back().key);
    pieces.push_back({local.address + i * 100, remotes.back().address + i, 99, i});
  }
  auto peer = here.MustOpen(there.Address());
  FillPattern(Bytes(local), local.size, 5);
  const Slice write{1, Op::kWrite, kNever, pieces, keys, kCount * 99};
  ASSERT_EQ(here.lane().Post(*peer, {&write, 1}), 1u);
  ASSERT_EQ(here.Wait(1).at(0).code, Code::kOk) << peer->last_error().ToString();
  for (uint32_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(PatternErrors(Bytes(remotes[i]) + i, 99, 5, i * 100), "") << i;
  }
  FillPattern(Bytes(local), local.size, 6);
  const Slice read{2, Op::kRead, kNever, pieces, keys, kCount * 99};
  ASSERT_EQ(here.lane().Post(*peer, {&read, 1}), 1u);
  ASSERT_EQ(here.Wait(1).at(0).code, Code::kOk) << peer->last_error().ToString();
  for (uint32_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(PatternErrors(Bytes(local) + i * 100, 99, 5, i * 100), "") << i;
  }
}

TEST(LocalTransport, OneBadPieceLeavesAllMemoryUntouched) {
  Node here;
  Node there;
  const RegionInfo local = here.Memory(Kind::kPlain, 8192);
  const RegionInfo remote = there.Memory(Kind::kPlain, 8192);
  auto peer = here.MustOpen(there.Address());
  FillPattern(Bytes(local), 8192, 1);
  const std::array<Piece, 2> pieces{Piece{local.address, remote.address, 4096, 0},
                                    Piece{local.address, remote.address + 8000, 193, 0}};
  const std::array<RegionKey, 1> keys{remote.key};
  for (const Op op : {Op::kWrite, Op::kRead}) {
    const Slice slice{1, op, kNever, pieces, keys, 4096 + 193};
    ASSERT_EQ(here.lane().Post(*peer, {&slice, 1}), 1u);
    EXPECT_EQ(here.Wait(1).at(0).code, Code::kInvalidArgument);
  }
  EXPECT_EQ(Bytes(remote)[0], std::byte{0});
  EXPECT_EQ(PatternErrors(Bytes(local), 8192, 1), "");
  EXPECT_EQ(there.transport().Metrics().requests_refused, 1u);
  EXPECT_EQ(here.transport().Metrics().requests_refused, 1u);  // a read is refused by its reader
}

// --- who may come

TEST(LocalTransport, AnotherBootIdIsAnotherHost) {
  Node here;
  Node there;
  auto options = there.Address();
  auto address = *DecodeAddress(options.address);
  address.host.boot[0] ^= 1;
  options.address = EncodeAddress(address);
  const auto peer = here.Open(options);
  EXPECT_EQ(peer.code(), Code::kUnsupported);
  EXPECT_THAT(peer.status().message(), HasSubstr("another host"));
}

TEST(LocalTransport, AnotherNetworkNamespaceIsUnsupported) {
  Node here;
  Node there;
  auto options = there.Address();
  auto address = *DecodeAddress(options.address);
  ++address.host.net_namespace;
  options.address = EncodeAddress(address);
  EXPECT_THAT(here.Open(options).status().ToString(), HasSubstr("unsupported: "));
  EXPECT_THAT(here.Open(options).status().message(), HasSubstr("network namespace"));
}

TEST(LocalTransport, AnotherIdentityIsStale) {
  Node here;
  Node there;
  auto options = there.Address();
  ++options.id.incarnation;
  EXPECT_EQ(here.Open(options).code(), Code::kStale);
}

TEST(LocalTransport, AnAddressOfNobodyIsUnavailableAndGarbageInvalid) {
  Node here;
  transport::PeerOptions options;
  {
    Node there;
    options = there.Address();
  }
  EXPECT_EQ(here.Open(options).code(), Code::kUnavailable);
  options.address = "garbage";
  EXPECT_EQ(here.Open(options).code(), Code::kInvalidArgument);
  options.address.clear();
  EXPECT_EQ(here.Open(options).code(), Code::kInvalidArgument);
}

// Something that listens, and lies.
class Impostor {
 public:
  explicit Impostor(transport::PeerOptions* options) {
    auto address = *DecodeAddress(options->address);
    SecureBytes(address.socket);
    listener_ = *Listen(address.socket, 8);
    options->address = EncodeAddress(address);
  }
  // Takes the greeting of one connection and answers it.
  void Answer(const std::string& answer) {
    pollfd ready{listener_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 30'000), 1);
    connection_.Reset(accept(listener_.get(), nullptr, nullptr));
    ready.fd = connection_.get();
    ASSERT_EQ(poll(&ready, 1, 30'000), 1);
    std::array<char, 1024> buffer;
    Receive(connection_.get(), buffer);
    if (answer.empty()) {
      connection_.Reset();
    } else {
      Send(connection_.get(), answer);
    }
  }

 private:
  UniqueFd listener_;
  UniqueFd connection_;
};

Result<std::unique_ptr<transport::Peer>> OpenImpostor(const std::string& answer) {
  Node here;
  Node there;
  auto options = there.Address();
  Impostor impostor(&options);
  std::jthread thread([&] { impostor.Answer(answer); });
  return here.Open(options);
}

TEST(LocalTransport, AnImpostorsAnswersAreRefused) {
  EXPECT_EQ(OpenImpostor("").code(), Code::kUnavailable);
  EXPECT_EQ(OpenImpostor("garbage").code(), Code::kUnavailable);
  Welcome welcome;
  EXPECT_EQ(OpenImpostor(EncodeWelcome(welcome)).code(), Code::kStale);  // no identity
  welcome.version = kVersion + 1;
  EXPECT_EQ(OpenImpostor(EncodeWelcome(welcome)).code(), Code::kUnsupported);
  welcome.code = Code::kExhausted;
  welcome.reason = "too many connections";
  const auto full = OpenImpostor(EncodeWelcome(welcome));
  EXPECT_EQ(full.code(), Code::kUnavailable);
  EXPECT_THAT(full.status().message(), HasSubstr("too many connections"));
}

TEST(LocalTransport, APeerOfAnotherTimeNamespaceIsUnsupported) {
  Node here;
  Node there;
  auto options = there.Address();
  Impostor impostor(&options);
  Welcome welcome;
  welcome.id = there.id();
  welcome.clock = (BootClock::now() + seconds(3600)).time_since_epoch().count();
  std::jthread thread([&] { impostor.Answer(EncodeWelcome(welcome)); });
  const auto peer = here.Open(options);
  EXPECT_EQ(peer.code(), Code::kUnsupported);
  EXPECT_THAT(peer.status().message(), HasSubstr("clock"));
}

TEST(LocalTransport, OpeningAFrozenPeerEndsAtItsDeadline) {
  Node here;
  Node there;
  auto options = there.Address();
  Impostor silent(&options);  // its backlog accepts, nobody answers
  const auto peer = here.transport().OpenPeer(options, After(BootClock::now(), milliseconds(50)));
  EXPECT_EQ(peer.code(), Code::kTimedOut);
  EXPECT_THAT(peer.status().message(), HasSubstr("handshake"));
}

TEST(LocalTransport, CloseEndsAnOpeningThatWaits) {
  Node here;
  Node there;
  auto options = there.Address();
  Impostor silent(&options);
  std::jthread closer([&] { here.transport().Close(); });
  EXPECT_EQ(here.transport().OpenPeer(options, kNever).code(), Code::kCancelled);
}

// --- what comes over the socket

// A raw connection to a node.
class Raw {
 public:
  explicit Raw(Node& node) {
    int error = 0;
    fd_ = Connect(DecodeAddress(node.transport().Address())->socket, &error);
    EXPECT_EQ(error, 0);
  }
  void Say(std::string_view packet, int fd = -1) const {
    EXPECT_EQ(Send(fd_.get(), packet, fd), 0);
  }
  int Try(std::string_view packet) const { return Send(fd_.get(), packet); }
  void Greet(const Node& node) const {
    Hello hello;
    hello.to = node.id();
    Say(EncodeHello(hello));
    EXPECT_EQ(KindOf(Hear()), static_cast<uint32_t>(local::Kind::kWelcome));
  }
  // The next packet; empty when the other side has closed.
  std::string Hear() const {
    pollfd ready{fd_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, 30'000), 1);
    std::array<char, 1024> buffer;
    return std::string(Receive(fd_.get(), buffer).bytes);
  }

 private:
  UniqueFd fd_;
};

TEST(LocalTransport, GarbageClosesItsConnectionAndNothingElse) {
  Node here;
  Node there;
  const RegionInfo local = here.Memory(Kind::kPlain, 4096);
  const RegionInfo remote = there.Memory(Kind::kPlain, 4096);
  auto peer = here.MustOpen(there.Address());
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, remote)), Code::kOk);
  const std::string long_packet(kMessageMax + 1, 'x');
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    std::string garbage(1 + random.Below(200), '\0');
    for (char& c : garbage) c = static_cast<char>(random.Next());
    if (i == 0) garbage = long_packet;
    const Raw before(there);
    before.Say(garbage);
    EXPECT_EQ(before.Hear(), "");
    const Raw after(there);
    after.Greet(there);
    if (i % 2 == 0 && i > 0) garbage.replace(0, 4, std::string("\3\0\0\0", 4));  // a write
    after.Say(garbage);
    EXPECT_EQ(after.Hear(), "");
  }
  EXPECT_GE(there.transport().Metrics().connections_rejected, 200u);
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, remote)), Code::kOk);
}

TEST(LocalTransport, DescriptorsNobodyAskedForAreNotKept) {
  Node there;
  const UniqueFd file(memfd_create("stranger", MFD_CLOEXEC));
  const Raw raw(there);
  raw.Greet(there);
  ArenaMessage arena;
  arena.number = 1;
  arena.size = 4096;
  raw.Say(BytesOf(arena), file.get());  // not sealed: not mapped, no harm
  arena.kind = local::Kind::kGetArena;
  raw.Say(BytesOf(arena));
  const std::string answer = raw.Hear();
  ArenaMessage none;
  ASSERT_TRUE(DecodeArena(answer, &none));
  EXPECT_EQ(none.size, 0u);  // there is no such arena
  EXPECT_FALSE(Mapped("stranger"));
}

TEST(LocalTransport, TwoDescriptorsInOnePacketAreRefusedAndNoneIsLeft) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  const UniqueFd file(memfd_create("stranger-pair", MFD_CLOEXEC));
  std::array<int, 2> both{file.get(), file.get()};
  char byte = 'x';
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(both))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(both));
  std::memcpy(CMSG_DATA(header), both.data(), sizeof(both));
  ASSERT_EQ(sendmsg(from.get(), &message, 0), 1);
  const int lowest = dup(file.get());  // descriptors are given from the lowest free one
  close(lowest);
  std::array<char, 16> buffer;
  EXPECT_EQ(Receive(to.get(), buffer).error, EBADMSG);
  const UniqueFd next(dup(file.get()));
  EXPECT_EQ(next.get(), lowest);  // nothing stayed open
}

TEST(LocalTransport, AnotherVersionIsToldWhy) {
  Node there;
  const Raw raw(there);
  Hello hello;
  hello.version = kVersion + 1;
  hello.to = there.id();
  raw.Say(EncodeHello(hello));
  Welcome welcome;
  ASSERT_TRUE(DecodeWelcome(raw.Hear(), &welcome));
  EXPECT_EQ(welcome.code, Code::kUnsupported);
  EXPECT_THAT(welcome.reason, HasSubstr("version"));
  EXPECT_EQ(welcome.cell.address, 0u);  // a stranger learns nothing
  EXPECT_EQ(raw.Hear(), "");
}

TEST(LocalTransport, ConnectionsBeyondTheBoundAreRefused) {
  transport::TransportOptions options;
  options.connections_max = 2;
  Node there(options);
  const Raw one(there);
  const Raw two(there);
  one.Greet(there);
  two.Greet(there);
  const Raw three(there);
  Welcome welcome;
  ASSERT_TRUE(DecodeWelcome(three.Hear(), &welcome));
  EXPECT_EQ(welcome.code, Code::kExhausted);
  EXPECT_EQ(three.Hear(), "");
}

TEST(LocalTransport, ConnectionsThatNeverGreetKeepNobodyOut) {
  transport::TransportOptions options;
  options.connections_max = 4;
  options.serving_threads = 1;
  Node there(options);
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Raw>(there));
  const Raw late(there);
  late.Greet(there);
  EXPECT_LE(there.transport().Metrics().connections_open, 5u);
  EXPECT_EQ(silent.front()->Hear(), "");
}

TEST(LocalTransport, AFloodedOwnerClosesThePeerThatDoesNotListen) {
  Node there;
  const RegionInfo remote = there.Memory(Kind::kPlain, 4096);
  const Raw raw(there);
  raw.Greet(there);
  Write write;
  write.keys = {remote.key};
  write.pieces = {{remote.address, 0, 0, 0, kNoSource}};  // refused; answered all the same
  std::string packet(kMessageMax, '\0');
  packet.resize(EncodeWrite(write, packet.data()));
  // Until the owner's answers no longer fit, and it gives up on us.
  int error = 0;
  const Time end = After(BootClock::now(), Patience());
  while ((error == 0 || error == EAGAIN) && BootClock::now() < end) error = raw.Try(packet);
  EXPECT_TRUE(error == EPIPE || error == ECONNRESET) << error;
  EXPECT_EQ(there.transport().Metrics().connections_rejected, 1u);
}

// --- processes

// Memory that test and child share, in the child's address space and registered there; the child
// answers to "address" and closes at the end.
struct Introduction {
  std::array<char, 512> address{};
  size_t address_size = 0;
  transport::NodeId id;
  RegionInfo plain;
  RegionInfo arena;
};

constexpr size_t kChildBytes = 4 << 20;

void ServeUntilEnd(Channel& channel) {
  Node node;
  Introduction introduction;
  introduction.plain = node.Memory(Kind::kPlain, kChildBytes);
  introduction.arena = node.Memory(Kind::kArena, kChildBytes);
  const std::string address = node.transport().Address();
  std::memcpy(introduction.address.data(), address.data(), address.size());
  introduction.address_size = address.size();
  introduction.id = node.id();
  channel.Send(
      std::string_view(reinterpret_cast<const char*>(&introduction), sizeof(introduction)));
  while (const auto message = channel.Receive()) {
    const RegionInfo& info = message->text[1] == 'a' ? introduction.arena : introduction.plain;
    if (message->text[0] == 'f') FillPattern(Bytes(info), kChildBytes, 9);
    const std::string errors = PatternErrors(Bytes(info), kChildBytes, 9);
    channel.Send(errors.empty() ? "good" : errors);
  }
}

MOONPOOL_CHILD(ServingOwner, channel) { ServeUntilEnd(channel); }

// Refuses `number` with EPERM for this process from now on.
void Forbid(long number) {
  std::array<sock_filter, 4> filter{
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<uint32_t>(number)},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{filter.size(), filter.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

MOONPOOL_CHILD(OwnerWithoutCma, channel) {
  Forbid(SYS_process_vm_readv);
  ServeUntilEnd(channel);
}

struct Owner {
  explicit Owner(std::string_view body = "ServingOwner") : child(body) {
    const auto message = child.channel().Receive(Patience());
    EXPECT_TRUE(message.has_value()) << "the child did not introduce itself";
    if (!message || message->text.size() != sizeof(about)) return;
    std::memcpy(&about, message->text.data(), sizeof(about));
  }
  transport::PeerOptions Address() const {
    return {"owner", about.id, "", std::string(about.address.data(), about.address_size)};
  }
  std::string Ask(const std::string& what) {
    child.channel().Send(what);
    const auto message = child.channel().Receive(Patience());
    return message ? message->text : "gone";
  }
  ChildProcess child;
  Introduction about;
};

class LocalProcesses : public ::testing::TestWithParam<Kind> {
 protected:
  RegionInfo Remote(const Owner& owner) const {
    RegionInfo info = GetParam() == Kind::kArena ? owner.about.arena : owner.about.plain;
    info.size = 1 << 20;
    return info;
  }
  std::string Which(char what) const { return {what, GetParam() == Kind::kArena ? 'a' : 'p'}; }
};
INSTANTIATE_TEST_SUITE_P(All, LocalProcesses, ::testing::Values(Kind::kPlain, Kind::kArena),
                         [](const auto& test) {
                           return test.param == Kind::kPlain ? "Plain" : "Arena";
                         });

// Writes the child's whole memory, in slices; returns the number of completions with `code`.
struct Bulk {
  Bulk(Op op, const RegionInfo& local, const RegionInfo& remote, Time deadline) : key(remote.key) {
    pieces.reserve(kChildBytes >> 18);
    for (uint64_t at = 0; at < kChildBytes; at += 1 << 18) {
      pieces.push_back({local.address + at, remote.address + at, 1 << 18, 0});
      slices.push_back({at, op, deadline, {&pieces.back(), 1}, {&key, 1}, 1 << 18});
    }
  }
  RegionKey key;
  std::vector<Piece> pieces;
  std::vector<Slice> slices;
};

TEST_P(LocalProcesses, BytesCrossBothWays) {
  Owner owner;
  Node here;
  const RegionInfo local = here.Memory(GetParam(), kChildBytes);
  auto peer = here.MustOpen(owner.Address());
  const RegionInfo remote = GetParam() == Kind::kArena ? owner.about.arena : owner.about.plain;
  FillPattern(Bytes(local), kChildBytes, 9);
  const Bulk write(Op::kWrite, local, remote, kNever);
  ASSERT_EQ(here.lane().Post(*peer, write.slices), write.slices.size());
  for (const Completion& done : here.Wait(write.slices.size())) EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(owner.Ask(Which('c')), "good");
  std::memset(Bytes(local), 0, kChildBytes);
  const Bulk read(Op::kRead, local, remote, kNever);
  ASSERT_EQ(here.lane().Post(*peer, read.slices), read.slices.size());
  for (const Completion& done : here.Wait(read.slices.size())) EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(PatternErrors(Bytes(local), kChildBytes, 9), "");
}

TEST_P(LocalProcesses, WritesToAFrozenOwnerTimeOutAndNeverArriveLater) {
  Owner owner;
  Node here;
  const RegionInfo local = here.Memory(GetParam(), kChildBytes);
  auto peer = here.MustOpen(owner.Address());
  const RegionInfo remote = GetParam() == Kind::kArena ? owner.about.arena : owner.about.plain;
  ASSERT_EQ(owner.Ask(Which('f')), "good");
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, Remote(owner))), Code::kOk);  // connected
  std::memset(Bytes(local), 0xee, kChildBytes);
  owner.child.Freeze();
  const Time begin = BootClock::now();
  const Bulk write(Op::kWrite, local, remote, begin + milliseconds(100));
  ASSERT_EQ(here.lane().Post(*peer, write.slices), write.slices.size());
  const auto done = here.Wait(write.slices.size());
  ASSERT_EQ(done.size(), write.slices.size());
  for (const Completion& one : done) EXPECT_EQ(one.code, Code::kTimedOut);
  EXPECT_GE(BootClock::now() - begin, milliseconds(100));
  owner.child.Thaw();
  // What it had been asked before it froze, it now refuses: the round trip comes after them.
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, Remote(owner))), Code::kOk);
  EXPECT_EQ(owner.Ask(Which('c')), "good");
}

TEST_P(LocalProcesses, AKilledOwnerFailsEverySliceAtOnce) {
  Owner owner;
  Node here;
  const RegionInfo local = here.Memory(GetParam(), kChildBytes);
  auto peer = here.MustOpen(owner.Address());
  const RegionInfo remote = GetParam() == Kind::kArena ? owner.about.arena : owner.about.plain;
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, Remote(owner))), Code::kOk);
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, Remote(owner))), Code::kOk);
  owner.child.Freeze();
  const Bulk write(Op::kWrite, local, remote, kNever);
  ASSERT_EQ(here.lane().Post(*peer, write.slices), write.slices.size());
  EXPECT_EQ(here.Wait(1, milliseconds(20)).size(), 0u);  // nobody can know yet
  owner.child.Kill();
  const auto done = here.Wait(write.slices.size());
  ASSERT_EQ(done.size(), write.slices.size());
  for (const Completion& one : done) EXPECT_EQ(one.code, Code::kUnavailable);
  // Its memory may still be mapped here; it counts no more.
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, Remote(owner))), Code::kUnavailable);
  EXPECT_THAT(peer->last_error().ToString(), HasSubstr("local owner"));
}

TEST_P(LocalProcesses, ReadsOfAFrozenOwnerStillWork) {
  Owner owner;
  Node here;
  const RegionInfo local = here.Memory(GetParam(), kChildBytes);
  auto peer = here.MustOpen(owner.Address());
  ASSERT_EQ(owner.Ask(Which('f')), "good");
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, Remote(owner))), Code::kOk);
  std::memset(Bytes(local), 0, kChildBytes);
  owner.child.Freeze();
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kRead, local, Remote(owner))), Code::kOk);
  EXPECT_EQ(PatternErrors(Bytes(local), 1 << 20, 9), "");
}

TEST_P(LocalProcesses, DetachWhileTheOwnerIsFrozenWaitsForCertainty) {
  Owner owner;
  Node here;
  const RegionInfo local = here.Memory(GetParam(), kChildBytes);
  auto peer = here.MustOpen(owner.Address());
  const RegionInfo remote = GetParam() == Kind::kArena ? owner.about.arena : owner.about.plain;
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, Remote(owner))), Code::kOk);
  owner.child.Freeze();
  const Bulk write(Op::kWrite, local, remote, kNever);
  ASSERT_EQ(here.lane().Post(*peer, write.slices), write.slices.size());
  here.lane().Detach(*peer);
  EXPECT_EQ(here.Wait(write.slices.size(), milliseconds(50)).size() + here.lane().in_flight(),
            write.slices.size());
  EXPECT_GT(here.lane().in_flight(), 0u);
  owner.child.Thaw();
  here.Wait(here.lane().in_flight());
  EXPECT_EQ(here.lane().in_flight(), 0u);
  EXPECT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, Remote(owner))), Code::kOk);  // and again
}

TEST(LocalTransport, WithoutCmaAtTheOwnerArenasStillMoveAndTheRestIsUnsupported) {
  Owner owner("OwnerWithoutCma");
  Node here;
  const RegionInfo arena = here.Memory(Kind::kArena, 1 << 20);
  const RegionInfo plain = here.Memory(Kind::kPlain, 1 << 20);
  auto opened = here.Open(owner.Address());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  auto& peer = **opened;
  EXPECT_THAT(peer.last_error().message(), HasSubstr("Operation not permitted"));
  EXPECT_EQ(RunOne(here, peer, Whole(Op::kWrite, arena, owner.about.arena)), Code::kOk);
  EXPECT_EQ(RunOne(here, peer, Whole(Op::kWrite, arena, owner.about.plain)), Code::kOk);
  EXPECT_EQ(RunOne(here, peer, Whole(Op::kWrite, plain, owner.about.arena)), Code::kUnsupported);
  EXPECT_EQ(RunOne(here, peer, Whole(Op::kRead, plain, owner.about.plain)), Code::kOk);
}

// The reader without CMA: a child that reports what it could do with an owner of its own.
MOONPOOL_CHILD(ReaderWithoutCma, channel) {
  Forbid(SYS_process_vm_readv);
  const auto message = channel.Receive();
  if (!message) return;
  Introduction about;
  std::memcpy(&about, message->text.data(), sizeof(about));
  Node node;
  auto peer =
      node.Open({"owner", about.id, "", std::string(about.address.data(), about.address_size)});
  if (!peer.ok()) {
    channel.Send(peer.status().ToString());
    return;
  }
  const RegionInfo local = node.Memory(Kind::kPlain, 1 << 20);
  std::string answer;
  for (const RegionInfo& remote : {about.arena, about.plain}) {
    answer += std::string(CodeName(RunOne(node, **peer, Whole(Op::kRead, local, remote)))) + " ";
  }
  channel.Send(answer);
}

std::string ReadWithoutCma(bool with_arena) {
  Node owner;
  Introduction about;
  about.id = owner.id();
  about.plain = owner.Memory(Kind::kPlain, 1 << 20);
  about.arena = with_arena ? owner.Memory(Kind::kArena, 1 << 20) : about.plain;
  const std::string address = owner.transport().Address();
  std::memcpy(about.address.data(), address.data(), address.size());
  about.address_size = address.size();
  ChildProcess child("ReaderWithoutCma");
  child.channel().Send({reinterpret_cast<const char*>(&about), sizeof(about)});
  const auto message = child.channel().Receive(Patience());
  return message ? message->text : "gone";
}

TEST(LocalTransport, WithoutCmaAtTheReaderArenasStillMove) {
  EXPECT_EQ(ReadWithoutCma(true), "ok unsupported ");
}

TEST(LocalTransport, WithoutCmaAndWithoutArenasThePeerIsUnsupportedAndTheErrorNamed) {
  const std::string answer = ReadWithoutCma(false);
  EXPECT_THAT(answer, HasSubstr("unsupported: local owner: handshake: process_vm_readv"));
  EXPECT_THAT(answer, HasSubstr("Operation not permitted"));
}

// A writer that is killed in mid-transfer, over and over, must not harm its owner.
MOONPOOL_CHILD(RestlessWriter, channel) {
  const auto message = channel.Receive();
  if (!message) return;
  Introduction about;
  std::memcpy(&about, message->text.data(), sizeof(about));
  Node node;
  auto peer =
      *node.Open({"owner", about.id, "", std::string(about.address.data(), about.address_size)});
  const RegionInfo local = node.Memory(Kind::kArena, kChildBytes);
  FillPattern(Bytes(local), kChildBytes, 4);
  const Bulk write(Op::kWrite, local, about.plain, kNever);
  channel.Send("ready");
  while (true) {
    if (node.lane().Post(*peer, write.slices) == 0) node.Wait(1);
    node.Wait(4, milliseconds(10));
  }
}

TEST(LocalTransport, AWriterKilledInMidTransferHarmsNobody) {
  Node owner;
  Introduction about;
  about.id = owner.id();
  about.plain = owner.Memory(Kind::kPlain, kChildBytes);
  const std::string address = owner.transport().Address();
  std::memcpy(about.address.data(), address.data(), address.size());
  about.address_size = address.size();
  for (int round = 0; round < 3; ++round) {
    ChildProcess child("RestlessWriter");
    child.channel().Send({reinterpret_cast<const char*>(&about), sizeof(about)});
    ASSERT_TRUE(child.channel().Receive(Patience()));
    const uint64_t before = owner.transport().Metrics().slices_served;
    const Time end = After(BootClock::now(), Patience());
    while (owner.transport().Metrics().slices_served < before + 20 && BootClock::now() < end) {
      owner.Wait(1, milliseconds(1));
    }
    child.Kill();
    while (owner.transport().Metrics().connections_open > 0 && BootClock::now() < end) {
      owner.Wait(1, milliseconds(1));
    }
    EXPECT_EQ(owner.transport().Metrics().connections_open, 0u);
    EXPECT_EQ(PatternErrors(Bytes(about.plain), 1 << 18, 4), "");
  }
}

TEST(LocalTransport, AnIdleTransportDoesNotSpin) {
  Node here;
  Node there;
  const RegionInfo local = here.Memory(Kind::kArena, 4096);
  const RegionInfo remote = there.Memory(Kind::kArena, 4096);
  auto peer = here.MustOpen(there.Address());
  ASSERT_EQ(RunOne(here, *peer, Whole(Op::kWrite, local, remote)), Code::kOk);
  const auto cpu = [] {
    timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  };
  here.Wait(1, milliseconds(50));
  const auto before = cpu();
  here.Wait(1, milliseconds(1000));
  EXPECT_LT(cpu() - before, milliseconds(10) * 2);  // 1 %, doubled for a loaded machine's ticks
}

}  // namespace
}  // namespace moonpool::local
