#include "rpc/client.h"

#include "rpc/rpc_fixture.h"

namespace moonpool::rpc {
namespace {

using net::testing::Eventually;
using net::testing::RawListener;
using net::testing::RawPeer;
using net::testing::RealClock;
using net::testing::RefusedPort;
using net::testing::Soon;
using ::testing::HasSubstr;

Time In(int ms) { return After(BootClock::now(), std::chrono::milliseconds(ms)); }

class ClientTest : public RpcTest {
 protected:
  // The failure of a call to `host_port` in `phase`.
  Status Failure(const std::string& host_port, FailurePhase phase, Time deadline = Soon()) {
    CallInfo info;
    const auto result = client_.Call({host_port, "echo", "", deadline}, &info);
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(FailurePhaseName(info.phase), FailurePhaseName(phase));
    EXPECT_FALSE(info.answered);
    EXPECT_THAT(result.status().message(), HasSubstr(host_port));
    EXPECT_THAT(result.status().message(), HasSubstr(std::string(FailurePhaseName(phase))));
    return result.status();
  }
};

TEST_F(ClientTest, BytesGoThereAndComeBack) {
  StartServer();
  CallInfo info;
  EXPECT_EQ(Call("echo", "hello", &info).value(), "hello");
  EXPECT_EQ(info.peer_host, "127.0.0.1");
  EXPECT_EQ(info.phase, FailurePhase::kNone);
  EXPECT_TRUE(info.answered);
  EXPECT_EQ(Call("echo", "").value(), "");
  const std::string large(9'000'000, 'x');
  EXPECT_EQ(Call("echo", large).value(), large);
  EXPECT_EQ(client_.connections(), 1u);
}

TEST_F(ClientTest, TheHandlersErrorComesBackUnchanged) {
  StartServer();
  CallInfo info;
  const auto result = Call("fail", "", &info);
  EXPECT_EQ(result.code(), Code::kStale);
  EXPECT_THAT(result.status().message(), HasSubstr("your epoch is 3, mine 4"));
  EXPECT_TRUE(info.answered);
  EXPECT_EQ(info.phase, FailurePhase::kNone);
}

TEST_F(ClientTest, AMalformedAddressIsTheCallersMistake) {
  EXPECT_EQ(Failure("nowhere", FailurePhase::kResolve).code(), Code::kInvalidArgument);
}

TEST_F(ClientTest, ARefusedConnectionIsUnavailable) {
  RefusedPort port;
  const Status status = Failure(port.host_port(), FailurePhase::kConnect);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
}

TEST_F(ClientTest, ASilentPeerTimesOutInTheHandshake) {
  RawListener listener;
  EXPECT_EQ(Failure(listener.host_port(), FailurePhase::kHandshake, In(300)).code(),
            Code::kTimedOut);
}

TEST_F(ClientTest, AnotherProtocolIsNamed) {
  RawListener listener;
  auto peer = std::async(std::launch::async, [&] {
    RawPeer raw = listener.AcceptOne();
    raw.Send("HTTP/1.1 400 Bad Request\r\n\r\n");
    raw.Receive(kHeaderBytes + 2);
    return raw;
  });
  const Status status = Failure(listener.host_port(), FailurePhase::kHandshake);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("'HTTP/1.1'"));
}

TEST_F(ClientTest, APeerThatClosesInTheHandshakeIsUnavailable) {
  RawListener listener;
  auto peer = std::async(std::launch::async, [&] { listener.AcceptOne().Receive(30); });
  EXPECT_EQ(Failure(listener.host_port(), FailurePhase::kHandshake).code(), Code::kUnavailable);
}

TEST_F(ClientTest, AnotherVersionIsUnsupportedAndBothAreNamed) {
  StartServer({.versions = {2, 3}});
  const Status status = Failure(host_port(), FailurePhase::kHandshake);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("this side speaks version 1, the peer 2 to 3"));
}

TEST_F(ClientTest, APeerThatSpeaksMoreVersionsIsUnderstood) {
  StartServer({.versions = {1, 9}});
  EXPECT_EQ(Call("echo", "hello").value(), "hello");
}

TEST_F(ClientTest, AFrozenHandlerTimesOutInTheDataPhase) {
  StartServer();
  EXPECT_TRUE(Call("echo").ok());
  CallInfo info;
  const auto result = client_.Call({host_port(), "wait", "", In(200)}, &info);
  EXPECT_EQ(result.code(), Code::kTimedOut);
  EXPECT_EQ(info.phase, FailurePhase::kData);
  EXPECT_EQ(info.peer_host, "127.0.0.1");
}

TEST_F(ClientTest, GarbageInsteadOfAReplyIsCorrupt) {
  RawListener listener;
  auto peer = std::async(std::launch::async, [&] {
    RawPeer raw = listener.AcceptOne();
    raw.Send(EncodeWelcome(1));
    raw.Receive(kHeaderBytes + 2 + kHeaderBytes + 4);
    raw.Send("MPR1 but not really a frame of ours");
    return raw;
  });
  EXPECT_EQ(Failure(listener.host_port(), FailurePhase::kData).code(), Code::kCorrupt);
}

TEST_F(ClientTest, APeerThatDiesInMidCallIsUnavailable) {
  StartServer();
  auto call = Waiting();
  server_->Close();
  const auto result = call.get();
  EXPECT_EQ(result.code(), Code::kUnavailable);
  EXPECT_THAT(result.status().message(), HasSubstr("data"));
}

TEST_F(ClientTest, CallsShareAConnectionAndOvertakeEachOther) {
  StartServer({.work_threads = 4});
  auto slow = Waiting();
  auto slower = Waiting();
  std::vector<std::future<bool>> quick;
  for (int i = 0; i < 8; ++i) {
    quick.push_back(std::async(std::launch::async, [this, i] {
      for (int j = 0; j < 50; ++j) {
        const std::string text = std::to_string(i * 1000 + j);
        const auto reply = Call("echo", text);
        if (!reply.ok() || *reply != text) return false;
      }
      return true;
    }));
  }
  for (auto& one : quick) EXPECT_TRUE(one.get());
  EXPECT_EQ(client_.connections(), 1u);
  Release();
  EXPECT_EQ(slow.get().value(), "released");
  EXPECT_EQ(slower.get().value(), "released");
}

TEST_F(ClientTest, AReplyThatComesTooLateIsDropped) {
  StartServer();
  EXPECT_EQ(client_.Call(host_port(), "wait", "", In(30)).code(), Code::kTimedOut);
  Release();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Call("echo", std::to_string(i)).value(), std::to_string(i));
}

TEST_F(ClientTest, TheFirstCallAfterARestartSucceeds) {
  StartServer();
  EXPECT_TRUE(Call("echo").ok());
  ServerOptions again;
  again.port = server_->port();
  server_.reset();
  StartServer(again);
  EXPECT_EQ(Call("echo", "again").value(), "again");
}

TEST_F(ClientTest, APeerWithoutASignOfLifeGetsANewConnection) {
  RawListener listener;
  auto peers = std::async(std::launch::async, [&] {
    RawPeer frozen = listener.AcceptOne();
    frozen.Send(EncodeWelcome(1));
    RawPeer alive = listener.AcceptOne();
    alive.Send(EncodeWelcome(1));
    alive.Receive(kHeaderBytes + 2 + kHeaderBytes + 4);
    alive.Send(Encode({.kind = Kind::kReply, .version = 1, .id = 1, .payload = "alive"}));
    alive.Receive(1);
  });
  EXPECT_EQ(client_.Call(listener.host_port(), "echo", "", In(200)).code(), Code::kTimedOut);
  EXPECT_EQ(client_.Call(listener.host_port(), "echo", "", Soon()).value(), "alive");
  client_.Close();
}

TEST_F(ClientTest, CloseWakesCallsInEveryPhase) {
  StartServer();
  RawListener silent;
  auto data = Waiting();
  auto handshake = std::async(std::launch::async,
                              [&] { return client_.Call(silent.host_port(), "echo", "", kNever); });
  RawPeer peer = silent.AcceptOne();
  EXPECT_THAT(peer.Receive(4), "MPR1");
  client_.Close();
  client_.Close();
  EXPECT_EQ(data.get().code(), Code::kCancelled);
  EXPECT_EQ(handshake.get().code(), Code::kCancelled);
  EXPECT_EQ(Call("echo").code(), Code::kCancelled);
  EXPECT_EQ(client_.connections(), 0u);
}

TEST_F(ClientTest, DisconnectEndsCallsOfThatPeerAlone) {
  StartServer();
  auto other_server = MakeServer();
  const std::string other = "127.0.0.1:" + std::to_string(other_server->port());
  EXPECT_TRUE(client_.Call(other, "echo", "", Soon()).ok());
  auto call = Waiting();
  client_.Disconnect(host_port());
  EXPECT_EQ(call.get().code(), Code::kUnavailable);
  EXPECT_EQ(client_.connections(), 1u);
  EXPECT_TRUE(Call("echo").ok());
}

TEST_F(ClientTest, IdleConnectionsMakeRoomLeastRecentlyUsedFirst) {
  StartServer();
  Client client(RealClock(), nullptr, {.connections_max = 2});
  std::vector<std::unique_ptr<Server>> servers;
  for (int i = 0; i < 3; ++i) {
    servers.push_back(MakeServer());
    const std::string to = "127.0.0.1:" + std::to_string(servers.back()->port());
    EXPECT_TRUE(client.Call(to, "echo", "", Soon()).ok());
  }
  EXPECT_EQ(client.connections(), 2u);
  EXPECT_TRUE(Eventually([&] { return servers[0]->Metrics().connections_open == 0; }));
  EXPECT_EQ(servers[1]->Metrics().connections_open, 1u);
}

TEST_F(ClientTest, BusyConnectionsAreNotEvicted) {
  StartServer();
  Client client(RealClock(), nullptr, {.connections_max = 1});
  auto call =
      std::async(std::launch::async, [&] { return client.Call(host_port(), "wait", "", Soon()); });
  EXPECT_TRUE(Eventually([&] { return waiting_ == 1; }));
  auto other = MakeServer();
  const std::string to = "127.0.0.1:" + std::to_string(other->port());
  EXPECT_EQ(client.Call(to, "echo", "", Soon()).code(), Code::kExhausted);
  Release();
  EXPECT_TRUE(call.get().ok());
  EXPECT_TRUE(client.Call(to, "echo", "", Soon()).ok());
}

TEST_F(ClientTest, RequestsOverTheBoundAreRefusedBeforeTheyAreSent) {
  StartServer();
  Client client(RealClock(), nullptr, {.frame_bytes_max = 10});
  EXPECT_EQ(client.Call(host_port(), "echo", "eleven byte", Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(client.Call(host_port(), "", "", Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(client.Call(host_port(), std::string(129, 'm'), "", Soon()).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(client.connections(), 0u);
}

TEST_F(ClientTest, IPv6PeersAreReached) {
  if (!net::testing::HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  auto server = MakeServer({.bind_host = "::1"});
  CallInfo info;
  const std::string to = "[::1]:" + std::to_string(server->port());
  EXPECT_EQ(client_.Call({to, "peer", "", Soon()}, &info).value(), "::1");
  EXPECT_EQ(info.peer_host, "::1");
}

}  // namespace
}  // namespace moonpool::rpc
