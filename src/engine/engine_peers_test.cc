// Peers that misbehave: gone, restarted, silent, garbage. What concerns freezing and killing processes is in
// tests/processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>

#include "base/thread.h"
#include "engine/test_node.h"
#include "net/socket.h"

namespace moonpool::engine {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using transport::Op;

class PeerOver : public ::testing::TestWithParam<const char*> {
 protected:
  Options On() { return OnLoopback(GetParam()); }
  Options At(const std::string& address) {
    Options options = On();
    options.listen = address;
    return options;
  }
};

TEST_P(PeerOver, TheFirstTransferToARestartedPeerSucceeds) {
  Node a(On());
  std::optional<Node> b(On());
  ASSERT_TRUE(a.error.ok() && b->error.ok());
  const std::string address = b->address();
  const auto segment = a.engine->Open(address, Long());
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(
      Move(a, Ask{.segment = *segment, .op = Op::kWrite}.Add(a.at(0), b->at(0), 100000)).ok());
  for (int round = 0; round < 3; ++round) {
    b.reset();
    b.emplace(At(address), (2 + round) << 20);
    ASSERT_TRUE(b->error.ok()) << b->error.ToString();
    std::memset(a.data(), 40 + round, 100000);
    const Time start = a.clock.Now();
    const Status moved =
        Move(a, Ask{.segment = *segment, .op = Op::kWrite}.Add(a.at(0), b->at(1 << 20), 100000));
    ASSERT_TRUE(moved.ok()) << moved.ToString();
    EXPECT_LT(a.clock.Now() - start, testing::Patience(std::chrono::seconds(5)));
    EXPECT_EQ(b->data()[(1 << 20) + 99999], 40 + round);
  }
}

TEST_P(PeerOver, APeerThatIsGoneGivesAnErrorThatNamesIt) {
  Node a(On());
  std::optional<Node> b(On());
  ASSERT_TRUE(a.error.ok() && b->error.ok());
  const std::string address = b->address();
  const auto segment = a.engine->Open(address, Long());
  ASSERT_TRUE(segment.ok());
  const uint64_t remote = b->at(0);
  b.reset();
  const auto batch =
      Submit(a, Ask{.segment = *segment, .op = Op::kWrite}.Add(a.at(0), remote, 1000));
  ASSERT_TRUE(batch.ok());
  const Status status = a.engine->Wait(*batch, Long() + Long());
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(address));
  const auto polled = a.engine->Poll(*batch);
  ASSERT_TRUE(polled.ok());
  EXPECT_EQ(polled->peer, address);
  EXPECT_NE(polled->phase, transport::Phase::kNone);
}

INSTANTIATE_TEST_SUITE_P(Transports, PeerOver, ::testing::Values("tcp", "local"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Peers, OpenSaysWhatIsWrong) {
  Node a(OnLoopback("tcp"));
  ASSERT_TRUE(a.error.ok());
  const Status nobody = a.engine->Open("127.0.0.1:1", Long()).status();
  EXPECT_EQ(nobody.code(), Code::kUnavailable);
  EXPECT_THAT(nobody.message(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(nobody.message(), HasSubstr("phase connect"));
  EXPECT_EQ(a.engine->Open("", Long()).code(), Code::kInvalidArgument);
  EXPECT_EQ(a.engine->Open("no-port", Long()).code(), Code::kInvalidArgument);
  EXPECT_THAT(a.engine->Open("no.such.host.invalid:1", Long()).status().message(),
              HasSubstr("phase resolve"));
}

TEST(Peers, ASilentServerCostsTheDeadlineAndNoMore) {
  Node a(OnLoopback("tcp"));
  ASSERT_TRUE(a.error.ok());
  const auto silent = net::Listen("127.0.0.1", 0);
  ASSERT_TRUE(silent.ok());
  const Time start = a.clock.Now();
  const Status status = a.engine
                            ->Open("127.0.0.1:" + std::to_string(net::LocalPort(silent->get())),
                                   std::chrono::milliseconds(300))
                            .status();
  EXPECT_EQ(status.code(), Code::kTimedOut) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("phase handshake"));
  EXPECT_LT(a.clock.Now() - start, Long());
}

TEST(Peers, AServerThatTalksGarbageIsNamed) {
  Node a(OnLoopback("tcp"));
  ASSERT_TRUE(a.error.ok());
  const auto server = net::Listen("127.0.0.1", 0);
  ASSERT_TRUE(server.ok());
  Thread answering("garbage", [&](const std::stop_token&) {
    for (int i = 0; i < 2; ++i) {  // the pooled connection may be tried once more
      UniqueFd client;
      while (!client.valid()) {
        client.Reset(::accept4(server->get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!client.valid() && errno != EAGAIN && errno != EINTR) return;
      }
      const char text[] = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
      [[maybe_unused]] const ssize_t sent = ::send(client.get(), text, sizeof(text), MSG_NOSIGNAL);
      char drain[64];
      [[maybe_unused]] const ssize_t got = ::recv(client.get(), drain, sizeof(drain), MSG_DONTWAIT);
    }
  });
  const Status status =
      a.engine->Open("127.0.0.1:" + std::to_string(net::LocalPort(server->get())), Long()).status();
  EXPECT_THAT(status.code(),
              AnyOf(Eq(Code::kCorrupt), Eq(Code::kUnavailable), Eq(Code::kUnsupported)))
      << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("phase handshake"));
  ::shutdown(server->get(), SHUT_RDWR);
}

TEST(Peers, TheNotificationQueueIsBoundedAndWaitingSendersGetThroughOnceItDrains) {
  Options small = OnLoopback("tcp");
  small.notifications_max = 2;
  Node a(OnLoopback("tcp"));
  Node b(small);
  ASSERT_TRUE(a.error.ok() && b.error.ok());
  const auto segment = a.engine->Open(b.address(), Long());
  ASSERT_TRUE(segment.ok());
  EXPECT_TRUE(a.engine->Notify(*segment, "1", Long()).ok());
  EXPECT_TRUE(a.engine->Notify(*segment, "2", Long()).ok());
  EXPECT_EQ(a.engine->Notify(*segment, "3", std::chrono::milliseconds(100)).code(),
            Code::kTimedOut);
  Ask ask = Ask{.segment = *segment, .op = Op::kWrite}.Add(a.at(0), b.at(0), 8);
  ask.notify = true;
  ask.payload = "4";
  const auto batch = Submit(a, ask);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(b.engine->TakeNotifications(10, Long()).size(), 2u);
  EXPECT_TRUE(a.engine->Wait(*batch, Long()).ok());
  const auto last = b.engine->TakeNotifications(10, Long());
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].payload, "4");
}

}  // namespace
}  // namespace moonpool::engine
