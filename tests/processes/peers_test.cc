// Peers that are killed, restarted at the same address, flooded; and the ways to write an address.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>

#include "child.h"
#include "net/address.h"
#include "net/socket.h"

namespace moonpool::processes {
namespace {

using ::testing::HasSubstr;

class Killed : public ::testing::TestWithParam<const char*> {};

TEST_P(Killed, PeerInMidTransferGivesAnErrorThatNamesIt) {
  Local here(GetParam(), 32 << 20);
  std::optional<Remote> there(std::in_place,
                              RemoteOptions{.transport = GetParam(), .bytes = 32 << 20});
  const auto segment = here.Open(there->address());
  const std::string address = there->address();
  std::vector<engine::BatchHandle> batches;
  const uint64_t local = here.at(0);
  const uint64_t remote = there->at(0);
  const uint64_t size = 32 << 20;
  for (int i = 0; i < 10; ++i) {
    const engine::Group group{
        segment, transport::Op::kWrite, {&local, 1}, {&remote, 1}, {&size, 1}};
    engine::BatchRequest request;
    request.groups = {&group, 1};
    request.timeout = Long();
    const auto batch = here.engine->Submit(request);
    ASSERT_TRUE(batch.ok());
    batches.push_back(*batch);
  }
  there->child().Kill();
  const Time start = here.clock.Now();
  int failed = 0;
  for (const auto batch : batches) {
    const Status status = here.engine->Wait(batch, Long());
    if (!status.ok()) {
      ++failed;
      EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
      EXPECT_THAT(status.message(), HasSubstr(address));
    }
    EXPECT_TRUE(here.engine->Release(batch).ok());
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(here.clock.Now() - start, testing::Patience(std::chrono::seconds(10)));
}

TEST_P(Killed, RestartedAtTheSameAddressServesTheFirstTransfer) {
  Local here(GetParam());
  std::optional<Remote> there(std::in_place, RemoteOptions{.transport = GetParam()});
  const std::string address = there->address();
  const auto segment = here.Open(address);
  ASSERT_TRUE(here.Write(segment, here.at(0), there->at(0), 100000).ok());
  there->child().Kill();
  there.emplace(RemoteOptions{.transport = GetParam(), .listen = address, .bytes = 4 << 20});
  std::memset(here.memory(), 42, 100000);
  const Time start = here.clock.Now();
  const Status moved = here.Write(segment, here.at(0), there->at(2 << 20), 100000);
  ASSERT_TRUE(moved.ok()) << moved.ToString();
  EXPECT_LT(here.clock.Now() - start, testing::Patience(std::chrono::seconds(5)));
  EXPECT_EQ(there->memory()[(2 << 20) + 99999], 42);
}

INSTANTIATE_TEST_SUITE_P(Transports, Killed, ::testing::Values("tcp", "local"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Flooded, ByHalfOpenConnectionsAPeerServesOthers) {
  Local here("tcp");
  Remote there({.transport = "tcp"});
  const auto to = net::ParseHostPort(there.address());
  ASSERT_TRUE(to.ok());
  const auto endpoint = net::NumericEndpoint(to->host, to->port);
  ASSERT_TRUE(endpoint.has_value());
  std::vector<UniqueFd> half_open;
  for (int i = 0; i < 2000; ++i) {
    auto fd = net::StartConnect(*endpoint);
    if (!fd.ok()) break;
    if (i % 2 == 0) (void)::send(fd->get(), "garbage\r\n\r\n", 11, MSG_NOSIGNAL | MSG_DONTWAIT);
    half_open.push_back(std::move(fd).value());
  }
  EXPECT_GE(half_open.size(), 900u);  // of 1,024 descriptors, where that is the limit
  half_open.resize(900);              // leave some for the engine
  const auto segment = here.Open(there.address());
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(here.Write(segment, here.at(0), there.at(0), 10000).ok());
}

TEST(Addresses, IPv4IPv6AndNamesAllWork) {
  for (const std::string listen : {"127.0.0.1:0", "[::1]:0", "localhost:0", ":0"}) {
    Remote there({.transport = "tcp", .listen = listen});
    if (there.address().empty()) {
      std::printf("%s: this machine has no such address\n", listen.c_str());
      continue;
    }
    Local here("tcp");
    const auto port = net::ParseHostPort(there.address())->port;
    std::vector<std::string> ways{there.address()};
    if (listen == "127.0.0.1:0") ways.push_back("localhost:" + std::to_string(port));
    if (listen == ":0")
      ways.insert(ways.end(),
                  {"127.0.0.1:" + std::to_string(port), "[::1]:" + std::to_string(port)});
    for (const std::string& way : ways) {
      const auto segment = here.engine->Open(way, Long());
      ASSERT_TRUE(segment.ok()) << way << ": " << segment.status().ToString();
      EXPECT_TRUE(here.Write(*segment, here.at(0), there.at(0), 1000).ok()) << way;
    }
  }
}

}  // namespace
}  // namespace moonpool::processes
