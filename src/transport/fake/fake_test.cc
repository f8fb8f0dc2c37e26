#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "testing/log_collector.h"
#include "testing/manual_clock.h"
#include "testing/pattern.h"
#include "transport/conformance.h"
#include "transport/fake/network.h"

namespace moonpool::fake {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FillPattern;
using testing::PatternErrors;
using testing::PatternPrefix;
using transport::Completion;
using transport::NodeId;
using transport::Op;
using transport::Piece;
using transport::Slice;

// Virtual time for the conformance suite: it passes from event to event.
class VirtualGround final : public transport::conformance::Ground {
 public:
  VirtualGround() : network_(clock_, {}) {}
  Clock& clock() override { return clock_; }
  Result<std::unique_ptr<transport::Transport>> Create(
      const transport::Environment& environment,
      const transport::TransportOptions& options) override {
    return network_.MakeFactory().create(environment, options);
  }
  void Pass(std::span<const int>, Duration step) override {
    const Time limit = clock_.Now() + step;
    clock_.AdvanceTo(std::min(limit, network_.NextEventAt()));
    while (network_.Step()) {
    }
  }

 private:
  testing::ManualClock clock_;
  Network network_;
};

MOONPOOL_TRANSPORT_CONFORMANCE(Fake, [] {
  transport::conformance::Params params;
  params.ground = [] { return std::make_unique<VirtualGround>(); };
  params.cannot.processes = "all nodes of a fake network live in one process";
  params.cannot.unmapped = "its bytes are moved by plain copies of this process";
  params.cannot.dial = "it has no sockets";
  params.cannot.redirect = "it has no sockets";
  params.bulk_bytes = 8 << 20;
  return params;
});

// One node with a buffer that is registered for everything.
struct Host {
  Host(Network& network, Clock& clock, NodeId id_in, size_t size)
      : id(id_in), log(LogLevel::kDebug, lines.sink()), regions(clock), bytes(size) {
    info = *regions.Register({.address = reinterpret_cast<uint64_t>(bytes.data()), .size = size});
    transport = *network.MakeFactory().create({clock, log, regions, arenas, id}, {});
    lane = *transport->OpenLane();
  }
  std::unique_ptr<transport::Peer> Open(const Host& other) {
    return *transport->OpenPeer({"other", other.id, "", other.transport->Address()}, kNever);
  }
  uint64_t address() const { return info.address; }

  NodeId id;
  testing::LogCollector lines;
  Logger log;
  memory::RegionTable regions;
  memory::ArenaSet arenas;
  std::vector<uint8_t> bytes;
  RegionInfo info;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Lane> lane;
};

constexpr size_t kSize = size_t{256} * 1024;

class FakeTest : public ::testing::Test {
 protected:
  FakeTest()
      : network_(clock_, {.seed = 3}),
        a_(network_, clock_, {1, 1}, kSize),
        b_(network_, clock_, {2, 1}, kSize),
        peer_(a_.Open(b_)) {
    FillPattern(a_.bytes.data(), kSize, 1);
    FillPattern(b_.bytes.data(), kSize, 2);
    piece_ = {a_.address(), b_.address(), kSize, 0};
    key_ = b_.info.key;
  }

  // One slice of everything, a to b.
  void Post(Op op, Time deadline = kNever) {
    const Slice slice{7, op, deadline, {&piece_, 1}, {&key_, 1}, kSize};
    ASSERT_EQ(a_.lane->Post(*peer_, {&slice, 1}), 1u);
  }
  // Runs events up to `until`, or all.
  void Run(Time until = kNever) {
    while (network_.NextEventAt() <= until && network_.NextEventAt() != kNever) {
      clock_.AdvanceTo(network_.NextEventAt());
      while (network_.Step()) {
      }
    }
    if (until != kNever) clock_.AdvanceTo(until);
  }
  void RunSome() { Run(clock_.Now() + microseconds(35)); }  // latency and some of the steps
  // The outcome of the one slice; kAgain: it has none yet.
  Code Outcome() {
    Completion out[2];
    const size_t count = a_.lane->Poll(out, clock_.Now());
    EXPECT_LE(count, 1u);
    return count == 1 ? out[0].code : Code::kAgain;
  }
  size_t Arrived() const { return PatternPrefix(b_.bytes.data(), kSize, 1); }

  testing::ManualClock clock_;
  Network network_;
  Host a_;
  Host b_;
  std::unique_ptr<transport::Peer> peer_;
  Piece piece_;
  RegionKey key_;
};

TEST_F(FakeTest, TransferTakesLatencyAndBandwidth) {
  network_.SetLink(1, 2, {.latency = milliseconds(3), .bandwidth = kSize * 100});
  network_.SetLink(2, 1, {.latency = milliseconds(2)});
  const Time start = clock_.Now();
  Post(Op::kWrite);
  Run();
  EXPECT_EQ(Outcome(), Code::kOk);
  EXPECT_EQ(clock_.Now() - start, milliseconds(3 + 10 + 2));
}

TEST_F(FakeTest, BytesArriveInSteps) {
  Post(Op::kWrite);
  RunSome();
  EXPECT_EQ(Outcome(), Code::kAgain);
  EXPECT_GT(Arrived(), 0u);
  EXPECT_LT(Arrived(), kSize);
  Run();
  EXPECT_EQ(Outcome(), Code::kOk);
  EXPECT_EQ(Arrived(), kSize);
}

TEST_F(FakeTest, NodeFrozenPastTheDeadlineStoresNothingWhenThawed) {
  for (const uint64_t frozen : {1, 2}) {
    Post(Op::kWrite, clock_.Now() + milliseconds(5));
    RunSome();
    network_.SetFrozen(frozen, true);
    Run(clock_.Now() + milliseconds(10));
    if (frozen == 2) {
      EXPECT_EQ(Outcome(), Code::kTimedOut);
    }
    FillPattern(b_.bytes.data(), kSize, 9);
    network_.SetFrozen(frozen, false);
    Run();
    if (frozen == 1) {
      EXPECT_EQ(Outcome(), Code::kTimedOut);
    }
    EXPECT_EQ(PatternErrors(b_.bytes.data(), kSize, 9), "");
  }
}

TEST_F(FakeTest, NodeFrozenForAWhileGoesOn) {
  Post(Op::kRead);
  RunSome();
  network_.SetFrozen(2, true);
  Run();
  EXPECT_EQ(Outcome(), Code::kAgain);
  network_.SetFrozen(2, false);
  Run();
  EXPECT_EQ(Outcome(), Code::kOk);
  EXPECT_EQ(PatternErrors(a_.bytes.data(), kSize, 2), "");
}

TEST_F(FakeTest, PartitionStopsSlicesUntilItHealsOrTheyTimeOut) {
  Post(Op::kWrite);
  RunSome();
  network_.SetPartitioned(2, 1, true);
  const size_t before = Arrived();
  Run();
  EXPECT_EQ(Outcome(), Code::kAgain);
  EXPECT_EQ(Arrived(), before);
  EXPECT_EQ(a_.transport->OpenPeer({"b", b_.id, "", b_.transport->Address()}, kNever).code(),
            Code::kTimedOut);
  network_.SetPartitioned(1, 2, false);
  Run();
  EXPECT_EQ(Outcome(), Code::kOk);
  network_.SetPartitioned(1, 2, true);
  Post(Op::kWrite, clock_.Now() + milliseconds(1));
  Run();
  EXPECT_EQ(Outcome(), Code::kTimedOut);
}

TEST_F(FakeTest, CrashedProcessIsNoticedAndItsMemoryLeftAlone) {
  Post(Op::kWrite);
  RunSome();
  network_.CrashNode(2, Crash::kProcess);
  FillPattern(b_.bytes.data(), kSize, 9);
  Run();
  EXPECT_EQ(Outcome(), Code::kUnavailable);
  EXPECT_EQ(PatternErrors(b_.bytes.data(), kSize, 9), "");
  EXPECT_EQ(peer_->last_error().code(), Code::kUnavailable);
}

TEST_F(FakeTest, CrashedMachineIsSilentUntilTheDeadline) {
  Post(Op::kRead, clock_.Now() + seconds(1));
  RunSome();
  network_.CrashNode(2, Crash::kMachine);
  Run();
  EXPECT_EQ(Outcome(), Code::kTimedOut);
}

TEST_F(FakeTest, CrashOfTheInitiatorEndsItsWrites) {
  Post(Op::kWrite);
  RunSome();
  network_.CrashNode(1, Crash::kProcess);
  FillPattern(b_.bytes.data(), kSize, 9);
  Run();
  EXPECT_EQ(PatternErrors(b_.bytes.data(), kSize, 9), "");
}

TEST_F(FakeTest, RestartedNodeIsStaleUnderItsOldName) {
  const std::string address = b_.transport->Address();
  network_.CrashNode(2, Crash::kProcess);
  Host again(network_, clock_, {2, 2}, kSize);
  EXPECT_EQ(again.transport->Address(), address);
  EXPECT_EQ(a_.transport->OpenPeer({"b", {2, 1}, "", address}, kNever).code(), Code::kStale);
  EXPECT_TRUE(a_.transport->OpenPeer({"b", {2, 2}, "", address}, kNever).ok());
  Post(Op::kRead);
  Run();
  EXPECT_EQ(Outcome(), Code::kUnavailable);
}

TEST_F(FakeTest, CorruptSliceSaysSo) {
  network_.CorruptNext(2, 1);
  Post(Op::kRead);
  Run();
  EXPECT_EQ(Outcome(), Code::kCorrupt);
  EXPECT_NE(PatternErrors(a_.bytes.data(), kSize, 2), "");
  Post(Op::kRead);
  Run();
  EXPECT_EQ(Outcome(), Code::kOk);
  EXPECT_EQ(a_.transport->Metrics().checksum_errors, 1u);
}

TEST_F(FakeTest, LossBreaksSlicesPartWay) {
  network_.SetLink(1, 2, {.loss_ppm = 1'000'000});
  Post(Op::kWrite);
  Run();
  EXPECT_EQ(Outcome(), Code::kUnavailable);
  EXPECT_LE(Arrived(), kSize);
}

TEST_F(FakeTest, RefusingNodeCannotBeOpened) {
  network_.SetRefusing(2, true);
  EXPECT_EQ(a_.transport->OpenPeer({"b", b_.id, "", b_.transport->Address()}, kNever).code(),
            Code::kUnavailable);
}

TEST_F(FakeTest, SameSeedSameRun) {
  const auto run = [](uint64_t seed) {
    testing::ManualClock clock;
    Network network(clock, {.seed = seed, .link = {.loss_ppm = 300'000}});
    Host a(network, clock, {1, 1}, 4096);
    Host b(network, clock, {2, 1}, 4096);
    const auto peer = a.Open(b);
    const Piece piece{a.address(), b.address(), 4096, 0};
    std::string outcomes;
    for (uint64_t i = 0; i < 40; ++i) {
      const Slice slice{i, Op::kRead, kNever, {&piece, 1}, {&b.info.key, 1}, 4096};
      EXPECT_EQ(a.lane->Post(*peer, {&slice, 1}), 1u);
    }
    while (network.NextEventAt() != kNever) {
      clock.AdvanceTo(network.NextEventAt());
      network.Step();
      Completion out;
      while (a.lane->Poll({&out, 1}, clock.Now()) == 1) {
        outcomes += static_cast<char>('a' + out.cookie);
        outcomes += out.code == Code::kOk ? '+' : '-';
      }
    }
    EXPECT_EQ(outcomes.size(), 80u);
    return outcomes;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

}  // namespace
}  // namespace moonpool::fake
