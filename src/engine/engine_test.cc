#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "base/thread.h"
#include "engine/test_node.h"
#include "testing/pattern.h"

namespace moonpool::engine {
namespace {

using ::testing::HasSubstr;
using transport::Op;

class EngineOver : public ::testing::TestWithParam<const char*> {
 protected:
  EngineOver() : a(OnLoopback(GetParam())), b(OnLoopback(GetParam())) {}
  void SetUp() override {
    ASSERT_TRUE(a.error.ok()) << a.error.ToString();
    ASSERT_TRUE(b.error.ok()) << b.error.ToString();
    const auto opened = a.engine->Open(b.address(), Long());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    segment = *opened;
  }
  Ask Write() { return {.segment = segment, .op = Op::kWrite}; }
  Ask Read() { return {.segment = segment, .op = Op::kRead}; }

  Node a, b;
  SegmentHandle segment = 0;
};

TEST_P(EngineOver, WritesAndReadsBytesOfAnySizeAndAlignment) {
  for (const uint64_t size : {1, 7, 64, 4095, 65537, 400000}) {
    for (uint64_t i = 0; i < size; ++i) a.data()[3 + i] = static_cast<uint8_t>(i * 31 + size);
    ASSERT_TRUE(Move(a, Write().Add(a.at(3), b.at(5), size)).ok()) << size;
    EXPECT_EQ(std::memcmp(a.data() + 3, b.data() + 5, size), 0) << size;
    std::memset(a.data() + 500000, 0, size);
    ASSERT_TRUE(Move(a, Read().Add(a.at(500000), b.at(5), size)).ok()) << size;
    EXPECT_EQ(std::memcmp(a.data() + 500000, b.data() + 5, size), 0) << size;
  }
}

TEST_P(EngineOver, ManySmallDescriptorsArriveWhereTheyBelong) {
  Ask ask = Write();
  const uint64_t count = 8000;
  for (uint64_t i = 0; i < count; ++i) {
    std::memset(a.data() + i * 64, static_cast<int>(i % 251), 64);
    ask.Add(a.at(i * 64), b.at((count - 1 - i) * 64), 64);
  }
  ASSERT_TRUE(Move(a, ask).ok());
  for (uint64_t i = 0; i < count; ++i) {
    ASSERT_EQ(b.data()[(count - 1 - i) * 64 + 63], i % 251) << i;
  }
}

TEST_P(EngineOver, MillionsOfBytesInOneDescriptor) {
  Node big_a(OnLoopback(GetParam()), 64 << 20);
  Node big_b(OnLoopback(GetParam()), 64 << 20);
  ASSERT_TRUE(big_a.error.ok() && big_b.error.ok());
  const auto opened = big_a.engine->Open(big_b.address(), Long());
  ASSERT_TRUE(opened.ok());
  Random random(3);
  for (uint64_t i = 0; i < 64 << 20; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(big_b.data() + i, &word, 8);
  }
  ASSERT_TRUE(
      Move(big_a, Ask{.segment = *opened, .op = Op::kRead}.Add(big_a.at(0), big_b.at(0), 64 << 20))
          .ok());
  EXPECT_EQ(std::memcmp(big_a.data(), big_b.data(), 64 << 20), 0);
}

TEST_P(EngineOver, AnyHostMemoryCanBeRegistered) {
  std::vector<uint8_t> heap(10001, 7);
  ASSERT_TRUE(a.engine->Register(heap.data() + 1, 10000, Rights::kReadWrite).ok());
  ASSERT_TRUE(
      Move(a, Write().Add(reinterpret_cast<uint64_t>(heap.data() + 1), b.at(0), 10000)).ok());
  EXPECT_EQ(b.data()[9999], 7);
  EXPECT_TRUE(a.engine->Deregister(heap.data() + 1, Long()).ok());
}

TEST_P(EngineOver, RefusesWhatIsNotRegisteredHere) {
  uint8_t outside[16];
  const Status status = Move(a, Write().Add(reinterpret_cast<uint64_t>(outside), b.at(0), 16));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("group 0 descriptor 0"));
  EXPECT_EQ(Move(a, Write().Add(a.at((1 << 20) - 8), b.at(0), 16)).code(), Code::kInvalidArgument);
}

TEST_P(EngineOver, RefusesRemoteRangesOutsideTheRegions) {
  const std::vector<uint8_t> before(b.data(), b.data() + 4096);
  const uint64_t end = uint64_t{1} << 20;
  for (const auto& [remote, size] : std::vector<std::pair<uint64_t, uint64_t>>{{b.at(0) - 1, 1},
                                                                               {b.at(0) - 8, 16},
                                                                               {b.at(end - 8), 16},
                                                                               {b.at(end), 1},
                                                                               {8, 8},
                                                                               {~0ULL - 64, 8}}) {
    const Status status = Move(a, Write().Add(a.at(0), remote, size));
    EXPECT_EQ(status.code(), Code::kInvalidArgument)
        << std::hex << remote << " " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(b.address()));
  }
  EXPECT_EQ(Move(a, Write().Add(a.at(0), b.at(0), 0)).code(), Code::kInvalidArgument);
  EXPECT_EQ(Move(a, Write().Add(a.at(0), b.at(0), uint64_t{1} << 40)).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), b.data()));
  EXPECT_TRUE(Move(a, Write().Add(a.at(0), b.at(0), 8)).ok());  // the peer and the path live on
}

TEST_P(EngineOver, RightsAreKept) {
  std::vector<uint8_t> readable(4096, 1);
  ASSERT_TRUE(b.engine->Register(readable.data(), readable.size(), Rights::kRead).ok());
  const auto remote = reinterpret_cast<uint64_t>(readable.data());
  EXPECT_TRUE(Move(a, Read().Add(a.at(0), remote, 4096)).ok());
  EXPECT_EQ(Move(a, Write().Add(a.at(0), remote, 4096)).code(), Code::kInvalidArgument);
  EXPECT_EQ(readable[0], 1);
  ASSERT_TRUE(b.engine->Deregister(readable.data(), Long()).ok());
}

TEST_P(EngineOver, DeregisteredMemoryIsOutOfReachAndRegisteringAgainBringsItBack) {
  std::vector<uint8_t> memory(4096, 1);
  const auto remote = reinterpret_cast<uint64_t>(memory.data());
  ASSERT_TRUE(b.engine->Register(memory.data(), memory.size(), Rights::kReadWrite).ok());
  ASSERT_TRUE(Move(a, Write().Add(a.at(0), remote, 4096)).ok());
  ASSERT_TRUE(b.engine->Deregister(memory.data(), Long()).ok());
  std::fill(memory.begin(), memory.end(), 9);
  EXPECT_EQ(Move(a, Write().Add(a.at(0), remote, 4096)).code(), Code::kInvalidArgument);
  EXPECT_EQ(memory, std::vector<uint8_t>(4096, 9));
  ASSERT_TRUE(b.engine->Register(memory.data(), memory.size(), Rights::kReadWrite).ok());
  std::memset(a.data(), 3, 4096);
  EXPECT_TRUE(Move(a, Write().Add(a.at(0), remote, 4096)).ok());
  EXPECT_EQ(memory, std::vector<uint8_t>(4096, 3));
  ASSERT_TRUE(b.engine->Deregister(memory.data(), Long()).ok());
}

TEST_P(EngineOver, NotificationComesAfterTheDataExactlyOnce) {
  for (int round = 0; round < 50; ++round) {
    std::memset(a.data(), round + 1, 300000);
    Ask ask = Write().Add(a.at(0), b.at(0), 300000);
    ask.notify = true;
    ask.payload = "round " + std::to_string(round);
    const auto batch = Submit(a, ask);
    ASSERT_TRUE(batch.ok());
    const auto got = b.engine->TakeNotifications(10, Long());
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].payload, ask.payload);
    EXPECT_EQ(got[0].sender, a.engine->name());
    ASSERT_EQ(b.data()[0], round + 1);
    ASSERT_EQ(b.data()[299999], round + 1);
    EXPECT_TRUE(a.engine->Wait(*batch, Long()).ok());
    EXPECT_TRUE(a.engine->Release(*batch).ok());
  }
  EXPECT_TRUE(b.engine->TakeNotifications(10, Duration{0}).empty());
}

TEST_P(EngineOver, CompletionsComeThroughTheQueue) {
  std::set<BatchHandle> want;
  for (int i = 0; i < 100; ++i) {
    Ask ask = Write().Add(a.at(0), b.at(0), 1000);
    ask.to_queue = true;
    const auto batch = Submit(a, ask);
    ASSERT_TRUE(batch.ok());
    want.insert(*batch);
  }
  while (!want.empty()) {
    pollfd ready{a.engine->event_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20000), 1);
    for (const BatchHandle batch : a.engine->NextCompleted(7, Duration{0})) {
      EXPECT_EQ(want.erase(batch), 1u);
      const auto status = a.engine->Poll(batch);
      ASSERT_TRUE(status.ok());
      EXPECT_TRUE(status->done && status->status.ok());
      EXPECT_EQ(status->transport, GetParam());
      EXPECT_EQ(status->bytes_done, 1000u);
      EXPECT_TRUE(a.engine->Release(batch).ok());
    }
  }
}

TEST_P(EngineOver, ManyThreadsShareOneEngine) {
  std::vector<Thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back("client", [&, t](const std::stop_token&) {
      for (int i = 0; i < 100; ++i) {
        const uint64_t at = static_cast<uint64_t>(t) * 8192;
        if (!Move(a, Ask{.segment = segment, .op = Op::kWrite}.Add(a.at(at), b.at(at), 8192)).ok())
          ++failures;
      }
    });
  }
  for (Thread& thread : threads) thread.Join();
  EXPECT_EQ(failures, 0);
}

TEST_P(EngineOver, CancelEndsABatchAndReleaseForgetsIt) {
  const auto batch = Submit(a, Write().Add(a.at(0), b.at(0), 1 << 20));
  ASSERT_TRUE(batch.ok());
  EXPECT_TRUE(a.engine->Cancel(*batch).ok());
  const Status status = a.engine->Wait(*batch, Long());
  EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled) << status.ToString();
  EXPECT_TRUE(a.engine->Release(*batch).ok());
  EXPECT_EQ(a.engine->Wait(*batch, Long()).code(), Code::kNotFound);
  EXPECT_EQ(a.engine->Release(*batch).code(), Code::kNotFound);
}

TEST_P(EngineOver, CloseEndsWithinTwoSecondsWithBatchesUnderWay) {
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Submit(a, Write().Add(a.at(0), b.at(0), 1 << 20)).ok());
  const Time start = a.clock.Now();
  a.engine->Close();
  EXPECT_LT(a.clock.Now() - start, testing::Patience(std::chrono::seconds(2)));
  a.engine->Close();
  EXPECT_EQ(Move(a, Write().Add(a.at(0), b.at(0), 8)).code(), Code::kCancelled);
  EXPECT_EQ(a.engine->Open(b.address(), Long()).code(), Code::kCancelled);
}

TEST_P(EngineOver, ClosingASegmentCancelsItsBatchesAndItCanBeOpenedAgain) {
  const auto batch = Submit(a, Write().Add(a.at(0), b.at(0), 1 << 20));
  ASSERT_TRUE(batch.ok());
  ASSERT_TRUE(a.engine->CloseSegment(segment).ok());
  const Status status = a.engine->Wait(*batch, Long());
  EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled) << status.ToString();
  EXPECT_EQ(Move(a, Write().Add(a.at(0), b.at(0), 8)).code(), Code::kInvalidArgument);
  const auto again = a.engine->Open(b.address(), Long());
  ASSERT_TRUE(again.ok());
  EXPECT_NE(*again, segment);
  segment = *again;
  EXPECT_TRUE(Move(a, Write().Add(a.at(0), b.at(0), 8)).ok());
}

TEST_P(EngineOver, AnEngineMayBeItsOwnPeer) {
  const auto self = a.engine->Open(a.address(), Long());
  ASSERT_TRUE(self.ok()) << self.status().ToString();
  std::memset(a.data(), 5, 1000);
  ASSERT_TRUE(Move(a, Ask{.segment = *self, .op = Op::kWrite}.Add(a.at(0), a.at(5000), 1000)).ok());
  EXPECT_EQ(a.data()[5999], 5);
}

TEST_P(EngineOver, ManyGroupsAndPeersInOneBatch) {
  Node c(OnLoopback(GetParam()));
  ASSERT_TRUE(c.error.ok());
  const auto other = a.engine->Open(c.address(), Long());
  ASSERT_TRUE(other.ok());
  std::memset(b.data(), 1, 100);
  std::memset(c.data(), 2, 100);
  const std::vector<uint64_t> local_b{a.at(0)}, remote_b{b.at(0)}, local_c{a.at(100)},
      remote_c{c.at(0)}, size{100};
  const Group groups[] = {{segment, Op::kRead, local_b, remote_b, size},
                          {*other, Op::kRead, local_c, remote_c, size}};
  BatchRequest request;
  request.groups = groups;
  const auto batch = a.engine->Submit(request);
  ASSERT_TRUE(batch.ok());
  ASSERT_TRUE(a.engine->Wait(*batch, Long()).ok());
  EXPECT_EQ(a.data()[99], 1);
  EXPECT_EQ(a.data()[199], 2);
}

TEST_P(EngineOver, ASegmentWithTwoGroupsIsNotifiedOnce) {
  const std::vector<uint64_t> here{a.at(0)}, there{b.at(0)}, size{100};
  const Group groups[] = {{segment, Op::kWrite, here, there, size},
                          {segment, Op::kRead, here, there, size}};
  BatchRequest request;
  request.groups = groups;
  request.notify = true;
  request.payload = "once";
  const auto batch = a.engine->Submit(request);
  ASSERT_TRUE(batch.ok());
  ASSERT_TRUE(a.engine->Wait(*batch, Long()).ok());
  EXPECT_EQ(b.engine->TakeNotifications(10, Duration{0}).size(), 1u);
}

TEST_P(EngineOver, SubmitsThatRaceCloseAllEnd) {
  std::vector<Thread> threads;
  std::atomic<int> stuck{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back("client", [&](const std::stop_token&) {
      Ask ask{.segment = segment, .op = Op::kWrite};
      for (uint64_t i = 0; i < 2000; ++i) ask.Add(a.at(i * 128), b.at(i * 128), 64);
      for (;;) {
        const auto batch = Submit(a, ask);
        if (!batch.ok()) return;
        const Status status = a.engine->Wait(*batch, Long());
        if (!status.ok() && status.code() != Code::kCancelled) ++stuck;
      }
    });
  }
  ::poll(nullptr, 0, 20);
  a.engine->Close();
  for (Thread& thread : threads) thread.Join();
  EXPECT_EQ(stuck, 0);
}

TEST_P(EngineOver, FreeRefusesWhileAnotherRegionLiesInTheAllocation) {
  const auto region = a.engine->Allocate(1 << 20, Rights::kReadWrite, false);
  ASSERT_TRUE(region.ok());
  auto* base = reinterpret_cast<uint8_t*>(region->address);
  ASSERT_TRUE(a.engine->Deregister(base, Long()).ok());
  ASSERT_TRUE(a.engine->Register(base + 4096, 4096, Rights::kReadWrite).ok());
  EXPECT_EQ(a.engine->Free(base, Long()).code(), Code::kAgain);
  base[4096] = 1;  // still there
  ASSERT_TRUE(a.engine->Deregister(base + 4096, Long()).ok());
  EXPECT_TRUE(a.engine->Free(base, Long()).ok());
}

INSTANTIATE_TEST_SUITE_P(Transports, EngineOver, ::testing::Values("tcp", "local"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Engine, BadOptionsNameTheField) {
  auto refused = [](auto change) {
    Options options = OnLoopback("");
    change(options);
    return Node(options).error;
  };
  EXPECT_THAT(refused([](Options& o) { o.workers = 0; }).message(), HasSubstr("workers"));
  EXPECT_THAT(refused([](Options& o) { o.workers = 17; }).message(), HasSubstr("1 .. 16"));
  EXPECT_THAT(refused([](Options& o) { o.timeout = Duration{0}; }).message(), HasSubstr("timeout"));
  EXPECT_THAT(refused([](Options& o) { o.transports = {"carrier-pigeon"}; }).message(),
              HasSubstr("carrier-pigeon"));
  EXPECT_THAT(refused([](Options& o) { o.listen = "127.0.0.1:99999"; }).message(),
              HasSubstr("99999"));
}

TEST(Engine, ThePortAskedForIsThePortBoundOrCreateFails) {
  Node first(OnLoopback("tcp"));
  ASSERT_TRUE(first.error.ok());
  Options options = OnLoopback("tcp");
  options.listen = first.address();
  const Node second(options);
  EXPECT_FALSE(second.error.ok());
  EXPECT_THAT(second.error.message(), HasSubstr(first.address()));
}

TEST(Engine, OnTheSameHostLocalIsChosenByItself) {
  Node a(OnLoopback(""));
  Node b(OnLoopback(""));
  ASSERT_TRUE(a.error.ok() && b.error.ok());
  const auto segment = a.engine->Open(b.address(), Long());
  ASSERT_TRUE(segment.ok());
  const auto info = a.engine->Segment(*segment, false, Long());
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->transport, "local") << info->reason;
}

TEST(Engine, RequestCloseClosesFromAnywhere) {
  Node a(OnLoopback("tcp"));
  ASSERT_TRUE(a.error.ok());
  a.engine->RequestClose();
  // A waiting call returns, and later calls are refused.
  EXPECT_TRUE(a.engine->TakeNotifications(1, Long()).empty());
  EXPECT_EQ(a.engine->Open("127.0.0.1:1", Long()).code(), Code::kCancelled);
}

TEST(Engine, ManyRegionsRegisterQuicklyAndAreFound) {
  Node a(OnLoopback("tcp"));
  ASSERT_TRUE(a.error.ok());
  constexpr size_t kCount = 100000;
  std::vector<uint8_t> memory(kCount * 64);
  const Time start = a.clock.Now();
  for (size_t i = 0; i < kCount; ++i)
    ASSERT_TRUE(a.engine->Register(memory.data() + i * 64, 64, Rights::kRead).ok());
  EXPECT_LT(a.clock.Now() - start, testing::Patience(std::chrono::seconds(2)));
  EXPECT_EQ(a.engine->Register(memory.data() + 10, 8, Rights::kRead).code(), Code::kAlreadyExists);
  Node b(OnLoopback("tcp"));
  const auto segment = b.engine->Open(a.address(), Long());
  ASSERT_TRUE(segment.ok());
  EXPECT_TRUE(Move(b, Ask{.segment = *segment}.Add(
                          b.at(0), reinterpret_cast<uint64_t>(memory.data() + 64 * 99999), 64))
                  .ok());
}

}  // namespace
}  // namespace moonpool::engine
