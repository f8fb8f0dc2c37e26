#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/str.h"
#include "testing/child_process.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

using testing::Channel;
using testing::ChildProcess;

constexpr Kind kKinds[] = {Kind::kShared, Kind::kArena};  // memory that parent and child both see

#define NEEDS_PROCESSES(world)                         \
  if (!(world).params().cannot.processes.empty()) {    \
    GTEST_SKIP() << (world).params().cannot.processes; \
  }

// --- What parent and child tell each other

void PutOptions(ByteWriter& out, const PeerOptions& options) {
  out.PutBytes(options.name);
  out.Put(options.id.node);
  out.Put(options.id.incarnation);
  out.PutBytes(options.host);
  out.PutBytes(options.address);
}

PeerOptions GetOptions(ByteReader& in) {
  PeerOptions options;
  options.name = in.GetBytes(256);
  options.id.node = in.Get<uint64_t>();
  options.id.incarnation = in.Get<uint64_t>();
  options.host = in.GetBytes(256);
  options.address = in.GetBytes(8192);
  return options;
}

void PutRegion(ByteWriter& out, const RegionInfo& info) {
  out.Put(info.address);
  out.Put(info.size);
  out.Put(info.key.slot);
  out.Put(info.key.generation);
  out.Put(info.key.access_key);
}

RegionInfo GetRegion(ByteReader& in) {
  RegionInfo info;
  info.address = in.Get<uint64_t>();
  info.size = in.Get<uint64_t>();
  info.key.slot = in.Get<uint32_t>();
  info.key.generation = in.Get<uint32_t>();
  info.key.access_key = in.Get<uint64_t>();
  return info;
}

// --- Children

// Offers a buffer until the parent goes away; answers every further message, so that the parent can see
// that it runs.
void OwnerBody(const Params& params, const std::string& instance, Channel& channel) {
  const auto start = channel.Receive();
  if (!start) return;
  ByteReader in(start->text);
  const auto kind = in.Get<Kind>();
  const auto size = in.Get<uint64_t>();
  const NodeId id{in.Get<uint64_t>(), in.Get<uint64_t>()};
  World world(params, instance);
  Node& node = world.Add("child", id);
  Buffer buffer(node, {.size = size, .kind = kind});
  ByteWriter out;
  PutOptions(out, node.address());
  PutRegion(out, buffer.info());
  channel.Send(out.str(), buffer.fd());
  while (channel.Receive()) channel.Send("here");
}

// Transfers between its own buffer and the parent's, once per message, until the deadline that it names.
void InitiatorBody(const Params& params, const std::string& instance, Channel& channel) {
  const auto start = channel.Receive();
  if (!start) return;
  ByteReader in(start->text);
  const auto kind = in.Get<Kind>();
  const PeerOptions owner = GetOptions(in);
  const RegionInfo remote = GetRegion(in);
  World world(params, instance);
  Node& node = world.Add("child");
  Buffer buffer(node, {.size = remote.size, .kind = kind});
  auto peer = node.Open(owner);
  if (peer == nullptr) return;
  Flight flight(world, node);
  ByteWriter ready;
  ready.Put(buffer.address());
  channel.Send(ready.str(), buffer.fd());
  while (const auto message = channel.Receive()) {
    ByteReader command(message->text);
    const auto op = command.Get<Op>();
    const Time deadline{Duration(command.Get<int64_t>())};
    channel.Send("started");
    do {
      flight.Bulk(*peer, {op, buffer.address(), remote.address, remote.key, remote.size, deadline});
      flight.Finish();
    } while (world.Now() < deadline);
    channel.Send("finished");
  }
}

// --- The parent's view of them

// A child's buffer, seen through its pages: also while the child stands still. An arena is sealed against
// writers; it is filled through the child's address space instead.
class Twin {
 public:
  Twin(UniqueFd fd, const ChildProcess& child, uint64_t address, uint64_t size)
      : pid_(child.pid()), address_(address), size_(size) {
    void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    writable_ = at != MAP_FAILED;
    if (!writable_) at = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
    MOONPOOL_CHECK(at != MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
  }
  ~Twin() { ::munmap(data_, size_); }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  void Fill(uint64_t seed) {
    if (writable_) return FillPattern(data_, size_, seed);
    std::vector<std::byte> bytes(1 << 20);
    for (uint64_t at = 0; at < size_; at += bytes.size()) {
      const size_t size = std::min<uint64_t>(bytes.size(), size_ - at);
      FillPattern(bytes.data(), size, seed, at);
      const iovec from{bytes.data(), size};
      const iovec to{reinterpret_cast<void*>(address_ + at), size};
      ASSERT_EQ(::process_vm_writev(pid_, &from, 1, &to, 1, 0), static_cast<ssize_t>(size));
    }
  }
  std::string Errors(uint64_t seed) const { return PatternErrors(data_, size_, seed); }

 private:
  const pid_t pid_;
  const uint64_t address_;
  const uint64_t size_;
  std::byte* data_;
  bool writable_;
};

struct Owner {
  Owner(World& world, Kind kind, uint64_t size, NodeId id = RandomId())
      : child(world.instance() + "Owner") {
    ByteWriter out;
    out.Put(kind);
    out.Put(size);
    out.Put(id.node);
    out.Put(id.incarnation);
    child.channel().Send(out.str());
    auto answer = child.channel().Receive(Patience());
    MOONPOOL_CHECK(answer.has_value());
    ByteReader in(answer->text);
    address = GetOptions(in);
    info = GetRegion(in);
    MOONPOOL_CHECK(in.Done());
    memory = std::make_unique<Twin>(std::move(answer->fd), child, info.address, size);
  }

  // Returns when the child has run since the call.
  bool Answers() {
    child.channel().Send("there?");
    return child.channel().Receive(Patience()).has_value();
  }
  void Fill(uint64_t seed) { memory->Fill(seed); }
  std::string Errors(uint64_t seed) const { return memory->Errors(seed); }

  ChildProcess child;
  PeerOptions address;
  RegionInfo info;
  std::unique_ptr<Twin> memory;
};

// A node here, an owner there.
struct Apart {
  Apart(World& world, Kind kind)
      : node(world.Add("here")),
        owner(world, kind, world.params().bulk_bytes),
        local(node, {.size = world.params().bulk_bytes, .kind = kind}),
        peer(node.Open(owner.address)),
        flight(world, node) {
    MOONPOOL_CHECK(peer != nullptr);
  }
  Range Whole(Op op, Time deadline = kNever) const {
    return {op, local.address(), owner.info.address, owner.info.key, owner.info.size, deadline};
  }
  Range Small(Op op) const {
    Range range = Whole(op);
    range.size = 4096;
    return range;
  }
  // How long all of it takes, undisturbed.
  Duration Measure(World& world, Op op) {
    const Time start = world.Now();
    flight.Bulk(*peer, Whole(op));
    EXPECT_TRUE(flight.Finish());
    return world.Now() - start;
  }

  Node& node;
  Owner owner;
  Buffer local;
  std::unique_ptr<Peer> peer;
  Flight flight;
};

void ProcessesReadAndWriteEachOther(World& world) {
  NEEDS_PROCESSES(world);
  for (const Kind kind : kKinds) {
    Apart apart(world, kind);
    for (const Op op : kOps) {
      apart.local.Fill(1);
      apart.owner.Fill(2);
      apart.flight.Bulk(*apart.peer, apart.Whole(op));
      ASSERT_TRUE(apart.flight.Finish());
      EXPECT_EQ(apart.local.Errors(op == Op::kRead ? 2 : 1), "");
      EXPECT_EQ(apart.owner.Errors(op == Op::kRead ? 2 : 1), "");
    }
    EXPECT_EQ(apart.flight.Count(Code::kOk), apart.flight.completed());
  }
}

void FrozenOwnerStoresNothingWhenThawed(World& world) {
  NEEDS_PROCESSES(world);
  Random random(21);
  for (const Kind kind : kKinds) {
    Apart apart(world, kind);
    for (const Op op : kOps) {
      const Duration whole = apart.Measure(world, op);
      for (int round = 0; round < 8; ++round) {
        SCOPED_TRACE(
            Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op), " round ", round));
        const Time deadline = world.In(std::max<Duration>(2 * whole, milliseconds(100)));
        apart.flight.Bulk(*apart.peer, apart.Whole(op, deadline));
        apart.flight.PumpFor(Duration(random.Below(static_cast<uint64_t>(whole.count()))));
        apart.owner.child.Freeze();
        ASSERT_TRUE(apart.flight.Finish());
        EXPECT_LT(world.Now() - deadline, kSettleMax + Patience(seconds(5)));
        apart.local.Fill(30);
        apart.owner.Fill(31);
        apart.owner.child.Thaw();
        ASSERT_TRUE(apart.owner.Answers());
        apart.flight.PumpFor(milliseconds(30));
        EXPECT_EQ(apart.local.Errors(30), "");
        EXPECT_EQ(apart.owner.Errors(31), "");
        ASSERT_TRUE(apart.flight.RunUntilOk(*apart.peer, apart.Small(op)));
      }
    }
    EXPECT_EQ(apart.flight.Count(Code::kOk) + apart.flight.Count(Code::kTimedOut) +
                  apart.flight.Count(Code::kUnavailable),
              apart.flight.completed());
  }
}

void OwnerFrozenForAWhileGoesOn(World& world) {
  NEEDS_PROCESSES(world);
  for (const Kind kind : kKinds) {
    Apart apart(world, kind);
    for (const Op op : kOps) {
      apart.local.Fill(1);
      apart.owner.Fill(2);
      apart.flight.Bulk(*apart.peer, apart.Whole(op, world.In(Patience(seconds(30)))));
      apart.flight.PumpFor(milliseconds(1));
      apart.owner.child.Freeze();
      apart.flight.PumpFor(milliseconds(200));
      apart.owner.child.Thaw();
      ASSERT_TRUE(apart.flight.Finish(Patience(seconds(60))));
      EXPECT_EQ(apart.flight.Count(Code::kOk), apart.flight.completed());
      EXPECT_EQ(apart.local.Errors(op == Op::kRead ? 2 : 1), "");
      EXPECT_EQ(apart.owner.Errors(op == Op::kRead ? 2 : 1), "");
    }
  }
}

void FrozenInitiatorStoresNothingWhenThawed(World& world) {
  NEEDS_PROCESSES(world);
  Random random(22);
  for (const Kind kind : kKinds) {
    Node& node = world.Add("here");
    Buffer ours(node, {.size = world.params().bulk_bytes, .kind = kind});
    ChildProcess child(world.instance() + "Initiator");
    Channel& channel = child.channel();
    ByteWriter start;
    start.Put(kind);
    PutOptions(start, node.address());
    PutRegion(start, ours.info());
    channel.Send(start.str());
    auto ready = channel.Receive(Patience());
    ASSERT_TRUE(ready);
    Twin theirs(std::move(ready->fd), child, ByteReader(ready->text).Get<uint64_t>(), ours.size());
    for (const Op op : kOps) {
      for (int round = 0; round < 8; ++round) {
        SCOPED_TRACE(
            Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op), " round ", round));
        const Time deadline = world.In(milliseconds(60));
        ByteWriter command;
        command.Put(op);
        command.Put(static_cast<int64_t>(deadline.time_since_epoch().count()));
        channel.Send(command.str());
        ASSERT_TRUE(channel.Receive(Patience()));  // it has started
        world.Pass(std::chrono::microseconds(random.Below(55'000)));
        child.Freeze();
        while (world.Now() < deadline + kSettleMax) world.Pass(deadline + kSettleMax - world.Now());
        ours.Fill(40);
        theirs.Fill(41);
        child.Thaw();
        ASSERT_TRUE(channel.Receive(Patience())) << "it does not finish";
        world.Pass(milliseconds(30));
        EXPECT_EQ(ours.Errors(40), "");
        EXPECT_EQ(theirs.Errors(41), "");
      }
    }
  }
}

void KilledOwnerIsUnavailableAndHurtsNoOtherPeer(World& world) {
  NEEDS_PROCESSES(world);
  Random random(23);
  for (const Kind kind : kKinds) {
    for (const Op op : kOps) {
      SCOPED_TRACE(Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op)));
      Apart apart(world, kind);
      Node& other = world.Add("other");
      Buffer spare(other, {.size = 4096});
      Buffer target(apart.node, {.size = 4096});
      auto other_peer = apart.node.Open(other);
      ASSERT_NE(other_peer, nullptr);
      apart.flight.Bulk(*apart.peer, apart.Whole(op));  // no deadline: the death is noticed
      apart.flight.PumpFor(std::chrono::microseconds(random.Below(5000)));
      apart.owner.child.Kill();
      ASSERT_TRUE(apart.flight.Finish(Patience(seconds(20))));
      EXPECT_EQ(CodeName(apart.flight.Run(*apart.peer, apart.Small(op))),
                CodeName(Code::kUnavailable));
      EXPECT_EQ(apart.flight.Count(Code::kOk) + apart.flight.Count(Code::kUnavailable),
                apart.flight.completed());
      const Status error = apart.peer->last_error();
      EXPECT_FALSE(error.ok());
      EXPECT_NE(error.message().find("child"), std::string::npos)
          << "does not name the peer: " << error.message();
      EXPECT_TRUE(apart.flight.RunUntilOk(
          *other_peer, {op, target.address(), spare.address(), spare.key(), 4096, kNever}));
      apart.local.Fill(50);
      apart.flight.PumpFor(milliseconds(20));
      EXPECT_EQ(apart.local.Errors(50), "");
    }
  }
}

void RestartedOwnerIsReachedUnderItsNewIdOnly(World& world) {
  NEEDS_PROCESSES(world);
  Apart apart(world, Kind::kShared);
  NodeId id = apart.owner.address.id;
  apart.owner.child.Kill();
  ++id.incarnation;
  Owner again(world, Kind::kShared, world.params().bulk_bytes, id);
  PeerOptions old = again.address;
  --old.id.incarnation;
  auto stale = apart.node.transport().OpenPeer(old, world.In(Patience()));
  EXPECT_EQ(CodeName(stale.code()), CodeName(Code::kStale)) << stale.status().ToString();
  EXPECT_NE(apart.flight.Run(*apart.peer, apart.Small(Op::kRead)), Code::kOk);
  auto peer = apart.node.Open(again.address);
  ASSERT_NE(peer, nullptr);
  again.Fill(60);
  EXPECT_EQ(apart.flight.Run(*peer, {Op::kRead, apart.local.address(), again.info.address,
                                     again.info.key, 4096, kNever}),
            Code::kOk);
  EXPECT_EQ(PatternErrors(apart.local.data(), 4096, 60), "");
}

void FrozenPeerDelaysNoOther(World& world) {
  NEEDS_PROCESSES(world);
  Apart apart(world, Kind::kShared);
  Node& other = world.Add("other");
  Buffer remote(other, {.size = 1 << 20});
  Buffer target(apart.node, {.size = 1 << 20});
  auto peer = apart.node.Open(other);
  ASSERT_NE(peer, nullptr);
  remote.Fill(70);
  apart.owner.child.Freeze();
  const Time deadline = world.In(Patience(seconds(60)));
  Range stuck = apart.Small(Op::kWrite);
  std::vector<uint64_t> stuck_cookies;
  for (int i = 0; i < 4; ++i) {
    stuck_cookies.push_back(apart.flight.Add({apart.peer.get(),
                                              Op::kWrite,
                                              deadline,
                                              {{stuck.local, stuck.remote, 4096, 0}},
                                              {stuck.key},
                                              {}}));
  }
  apart.flight.Pump();
  for (int round = 0; round < 20; ++round) {
    const size_t before = apart.flight.Count(Code::kOk);
    const size_t slices = apart.flight.Bulk(
        *peer, {Op::kRead, target.address(), remote.address(), remote.key(), 1 << 20, kNever});
    EXPECT_TRUE(world.Until(
        [&] {
          apart.flight.Pump();
          return apart.flight.Count(Code::kOk) >= before + slices;
        },
        Patience(seconds(20))));
  }
  EXPECT_EQ(target.Errors(70), "");
  EXPECT_LT(world.Now(), deadline);
  apart.owner.child.Kill();
  ASSERT_TRUE(apart.flight.Finish(Patience(seconds(20))));
  for (const uint64_t cookie : stuck_cookies) EXPECT_NE(apart.flight.code(cookie), Code::kOk);
}

void OpeningAFrozenPeerEndsByItsDeadline(World& world) {
  NEEDS_PROCESSES(world);
  Node& node = world.Add("here");
  Owner owner(world, Kind::kShared, 4096);
  owner.child.Freeze();
  const Time deadline = world.In(milliseconds(300));
  const auto peer = node.transport().OpenPeer(owner.address, deadline);
  EXPECT_FALSE(peer.ok());
  EXPECT_EQ(CodeName(peer.code()), CodeName(Code::kTimedOut)) << peer.status().ToString();
  EXPECT_LT(world.Now() - deadline, Patience(seconds(10)));
  owner.child.Thaw();
  EXPECT_NE(node.Open(owner.address), nullptr);
}

// Initiators die in mid-transfer; the owner serves on and forgets them.
void KilledInitiatorsLeaveTheOwnerWell(World& world) {
  NEEDS_PROCESSES(world);
  Pair pair(world, {.size = world.params().bulk_bytes, .kind = Kind::kShared});
  ASSERT_EQ(
      pair.flight.RunUntilOk(*pair.peer, {Op::kRead, pair.local.address(), pair.remote.address(),
                                          pair.remote.key(), 4096, kNever}),
      true);
  const uint64_t before = pair.there.transport().Metrics().connections_open;
  Random random(24);
  for (int round = 0; round < 6; ++round) {
    ChildProcess child(world.instance() + "Initiator");
    ByteWriter start;
    start.Put(Kind::kShared);
    PutOptions(start, pair.there.address());
    PutRegion(start, pair.remote.info());
    child.channel().Send(start.str());
    ASSERT_TRUE(child.channel().Receive(Patience()));
    ByteWriter command;
    command.Put(round % 2 ? Op::kRead : Op::kWrite);
    command.Put(static_cast<int64_t>(world.In(Patience()).time_since_epoch().count()));
    child.channel().Send(command.str());
    ASSERT_TRUE(child.channel().Receive(Patience()));
    world.Pass(std::chrono::microseconds(random.Below(20'000)));
    child.Kill();
    EXPECT_TRUE(pair.flight.RunUntilOk(
        *pair.peer,
        {Op::kRead, pair.local.address(), pair.remote.address(), pair.remote.key(), 4096, kNever}));
  }
  EXPECT_TRUE(world.Until([&] {
    return pair.there.transport().Metrics().connections_open <= before;
  })) << pair.there.transport().Metrics().connections_open
      << " connections, " << before << " before";
}

constexpr Case kCases[] = {
    {"ProcessesReadAndWriteEachOther", ProcessesReadAndWriteEachOther},
    {"FrozenOwnerStoresNothingWhenThawed", FrozenOwnerStoresNothingWhenThawed},
    {"OwnerFrozenForAWhileGoesOn", OwnerFrozenForAWhileGoesOn},
    {"FrozenInitiatorStoresNothingWhenThawed", FrozenInitiatorStoresNothingWhenThawed},
    {"KilledOwnerIsUnavailableAndHurtsNoOtherPeer", KilledOwnerIsUnavailableAndHurtsNoOtherPeer},
    {"RestartedOwnerIsReachedUnderItsNewIdOnly", RestartedOwnerIsReachedUnderItsNewIdOnly},
    {"FrozenPeerDelaysNoOther", FrozenPeerDelaysNoOther},
    {"OpeningAFrozenPeerEndsByItsDeadline", OpeningAFrozenPeerEndsByItsDeadline},
    {"KilledInitiatorsLeaveTheOwnerWell", KilledInitiatorsLeaveTheOwnerWell},
};

}  // namespace

std::span<const Case> ProcessCases() { return kCases; }

void RegisterChildren(const std::string& instance, const std::function<Params()>& make) {
  testing::RegisterChild(instance + "Owner", [instance, make](Channel& channel) {
    OwnerBody(make(), instance, channel);
  });
  testing::RegisterChild(instance + "Initiator", [instance, make](Channel& channel) {
    InitiatorBody(make(), instance, channel);
  });
}

}  // namespace moonpool::transport::conformance
