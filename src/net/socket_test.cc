#include "net/socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include "net/poller.h"
#include "net/test_support.h"

namespace moonpool::net {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;
using testing::RawListener;
using testing::RealClock;
using testing::RefusedPort;
using testing::Soon;

Result<UniqueFd> ConnectTo(std::string_view host, uint16_t port, Time deadline = Soon()) {
  const Endpoint to = *NumericEndpoint(host, port);
  return Connect(RealClock(), {&to, 1}, deadline);
}

TEST(ListenTest, TheKernelPicksThePort) {
  const auto fd = Listen("127.0.0.1", 0);
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_NE(LocalPort(fd->get()), 0);
  EXPECT_EQ(LocalEndpoint(fd->get()).host(), "127.0.0.1");
}

TEST(ListenTest, SocketsAreNonBlockingAndCloseOnExec) {
  const auto fd = Listen("127.0.0.1", 0);
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(::fcntl(fd->get(), F_GETFL) & O_NONBLOCK);
  EXPECT_TRUE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC);
  const auto out = ConnectTo("127.0.0.1", LocalPort(fd->get()));
  ASSERT_TRUE(out.ok());
  EXPECT_TRUE(::fcntl(out->get(), F_GETFL) & O_NONBLOCK);
  EXPECT_TRUE(::fcntl(out->get(), F_GETFD) & FD_CLOEXEC);
}

TEST(ListenTest, ATakenPortIsRefused) {
  const auto first = Listen("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const auto second = Listen("127.0.0.1", LocalPort(first->get()));
  EXPECT_EQ(second.code(), Code::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr("127.0.0.1:"));
}

TEST(ListenTest, AnAddressOfAnotherMachineIsRefused) {
  EXPECT_EQ(Listen("192.0.2.1", 0).code(), Code::kInvalidArgument);
}

TEST(ListenTest, EmptyHostServesIpv4AndIpv6) {
  const auto fd = Listen("", 0);
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_TRUE(ConnectTo("127.0.0.1", LocalPort(fd->get())).ok());
  if (!testing::HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  EXPECT_TRUE(ConnectTo("::1", LocalPort(fd->get())).ok());
}

TEST(AcceptTest, ShowsIpv4PeersOfADualStackSocketAsIpv4) {
  const auto listener = Listen("", 0);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(Accept(listener->get()).code(), Code::kAgain);
  const auto out = ConnectTo("127.0.0.1", LocalPort(listener->get()));
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(WaitFor(RealClock(), listener->get(), POLLIN, Soon()).ok());
  const auto in = Accept(listener->get());
  ASSERT_TRUE(in.ok());
  EXPECT_EQ(PeerEndpoint(in->get()).host(), "127.0.0.1");
  EXPECT_EQ(PeerEndpoint(in->get()), LocalEndpoint(out->get()));
}

TEST(SocketTest, KnowsWhatStaysOnThisHost) {
  const auto listener = Listen("", 0);
  ASSERT_TRUE(listener.ok());
  EXPECT_FALSE(StaysOnThisHost(listener->get()));
  const auto out = ConnectTo("127.0.0.1", LocalPort(listener->get()));
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(WaitFor(RealClock(), listener->get(), POLLIN, Soon()).ok());
  const auto in = Accept(listener->get());
  ASSERT_TRUE(in.ok());
  EXPECT_TRUE(StaysOnThisHost(out->get()));
  EXPECT_TRUE(StaysOnThisHost(in->get()));
}

TEST(SocketTest, SetsTheCongestionControlWhereTheKernelHasIt) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(SetCongestionControl(fd.get(), "reno"));  // every kernel has it
  char name[16] = {};
  socklen_t size = sizeof(name);
  ASSERT_EQ(getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
  EXPECT_STREQ(name, "reno");
  EXPECT_FALSE(SetCongestionControl(fd.get(), "none-such"));
}

TEST(ConnectTest, ARefusedPortIsUnavailable) {
  RefusedPort port;
  ASSERT_TRUE(port.bound());
  const auto fd = ConnectTo("127.0.0.1", port.port());
  EXPECT_EQ(fd.code(), Code::kUnavailable);
  EXPECT_EQ(fd.status().message(), "connect to " + port.host_port() + ": Connection refused");
}

TEST(ConnectTest, TriesTheNextAddress) {
  RefusedPort refused;
  RawListener listener;
  const Endpoint both[] = {*NumericEndpoint("127.0.0.1", refused.port()),
                           *NumericEndpoint("127.0.0.1", listener.port())};
  const auto fd = Connect(RealClock(), both, Soon());
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_EQ(PeerEndpoint(fd->get()).port(), listener.port());
}

// A listener whose queue is full: the kernel drops further attempts.
struct FullListener {
  UniqueFd fd;
  std::vector<UniqueFd> waiting;
  FullListener() : fd(Listen("127.0.0.1", 0, {.backlog = 0}).value()) {
    for (int i = 0; i < 8; ++i) {
      auto connecting = StartConnect(*NumericEndpoint("127.0.0.1", LocalPort(fd.get())));
      if (connecting.ok()) waiting.push_back(std::move(connecting).value());
    }
  }
};

TEST(ConnectTest, EndsAtTheDeadline) {
  FullListener listener;
  const auto fd = ConnectTo("127.0.0.1", LocalPort(listener.fd.get()),
                            After(BootClock::now(), std::chrono::milliseconds(30)));
  EXPECT_EQ(fd.code(), Code::kTimedOut);
}

TEST(ConnectTest, AWakeUpEndsIt) {
  FullListener listener;
  auto waker = Waker::Create();
  ASSERT_TRUE(waker.ok());
  waker->Wake();
  const Endpoint to = *NumericEndpoint("127.0.0.1", LocalPort(listener.fd.get()));
  EXPECT_EQ(Connect(RealClock(), {&to, 1}, kNever, waker->fd()).code(), Code::kCancelled);
}

TEST(ConnectFailureTest, CodesSayWhatToDo) {
  const Endpoint to = *NumericEndpoint("10.0.0.7", 80);
  EXPECT_EQ(ConnectFailure(to, ECONNREFUSED).code(), Code::kUnavailable);
  EXPECT_EQ(ConnectFailure(to, EHOSTUNREACH).code(), Code::kUnavailable);
  EXPECT_EQ(ConnectFailure(to, EADDRNOTAVAIL).code(), Code::kExhausted);
  EXPECT_EQ(ConnectFailure(to, EMFILE).code(), Code::kExhausted);
}

TEST(PollerTest, ReportsEachDescriptorByItsToken) {
  auto poller = Poller::Create();
  auto waker = Waker::Create();
  ASSERT_TRUE(poller.ok() && waker.ok());
  ASSERT_TRUE(poller->Add(waker->fd(), 42, {.read = true}).ok());
  Poller::Event events[4];
  EXPECT_EQ(poller->Wait(events, 0), 0u);
  waker->Wake();
  waker->Wake();
  ASSERT_EQ(poller->Wait(events, 10'000), 1u);
  EXPECT_EQ(events[0].token, 42u);
  EXPECT_TRUE(events[0].readable);
  waker->Drain();
  EXPECT_EQ(poller->Wait(events, 0), 0u);
  waker->Wake();
  poller->Modify(waker->fd(), 42, {});
  EXPECT_EQ(poller->Wait(events, 0), 0u);
  poller->Remove(waker->fd());
}

}  // namespace
}  // namespace moonpool::net
