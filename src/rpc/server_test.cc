#include "rpc/server.h"

#include "rpc/rpc_fixture.h"
#include "testing/manual_clock.h"

namespace moonpool::rpc {
namespace {

using net::testing::Eventually;
using net::testing::Patience;
using net::testing::RawPeer;
using net::testing::RealClock;
using net::testing::Soon;
using ::testing::HasSubstr;

class ServerTest : public RpcTest {};

TEST_F(ServerTest, TellsHandlersWhoCallsAndUntilWhen) {
  StartServer();
  EXPECT_EQ(Call("peer").value(), "127.0.0.1");
  EXPECT_EQ(client_.Call(host_port(), "deadline", "", kNever).value(), "none");
  const auto left =
      client_.Call(host_port(), "deadline", "", After(BootClock::now(), std::chrono::hours(1)));
  ASSERT_TRUE(left.ok());
  EXPECT_GT(std::stoll(*left), 0);
  EXPECT_LE(std::stoll(*left), 3'600'000);
}

TEST_F(ServerTest, AnUnknownMethodIsUnsupported) {
  StartServer();
  const auto result = Call("sing");
  EXPECT_EQ(result.code(), Code::kUnsupported);
  EXPECT_THAT(result.status().message(), HasSubstr("unknown method 'sing'"));
  EXPECT_TRUE(Call("echo").ok());
}

TEST_F(ServerTest, AnExceptionBecomesInternal) {
  StartServer();
  const auto result = Call("throw");
  EXPECT_EQ(result.code(), Code::kInternal);
  EXPECT_THAT(result.status().message(), HasSubstr("out of cheese"));
}

TEST_F(ServerTest, AFullQueueSaysAgain) {
  StartServer({.work_threads = 1, .queue_max = 4});
  auto running = Waiting();
  std::vector<std::future<Result<std::string>>> queued;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<Client>(RealClock()));
    queued.push_back(std::async(std::launch::async, [this, client = clients.back().get()] {
      return client->Call(host_port(), "echo", "", Soon());
    }));
  }
  EXPECT_TRUE(Eventually([&] { return server_->Metrics().requests_refused == 8; }));
  Release();
  int again = 0;
  for (auto& call : queued) again += call.get().code() == Code::kAgain ? 1 : 0;
  EXPECT_EQ(again, 8);
  EXPECT_TRUE(running.get().ok());
}

TEST_F(ServerTest, ARequestWhoseDeadlinePassedInTheQueueIsNotRun) {
  moonpool::testing::ManualClock clock;  // the server's
  server_ = MakeServer({.work_threads = 1}, clock);
  auto running = Waiting();
  auto queued = std::async(std::launch::async, [this] { return Call("wait"); });
  EXPECT_TRUE(Eventually([&] { return server_->Metrics().requests == 2; }));
  clock.Advance(std::chrono::hours(1));
  Release();
  const auto refused = queued.get();
  EXPECT_EQ(refused.code(), Code::kTimedOut);
  EXPECT_THAT(refused.status().message(), HasSubstr("while the request was queued"));
  EXPECT_TRUE(running.get().ok());
  EXPECT_EQ(waiting_, 1);
  server_.reset();  // before its clock
}

TEST_F(ServerTest, GarbageClosesThatConnectionAlone) {
  StartServer();
  EXPECT_TRUE(Call("echo").ok());
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'),
        EncodeHello({1, 1}) + std::string("rubbish"), Encode({.kind = Kind::kRequest})}) {
    RawPeer raw(server_->port());
    raw.Send(garbage);
    EXPECT_THAT(raw.ReceiveAll(), ::testing::Not(HasSubstr("timed out")));
  }
  EXPECT_EQ(Call("echo", "fine").value(), "fine");
  EXPECT_EQ(client_.connections(), 1u);
  EXPECT_EQ(server_->Metrics().connections_rejected, 4u);
}

TEST_F(ServerTest, AnOversizedFrameClosesTheConnectionAtItsHeader) {
  StartServer({.frame_bytes_max = 1000});
  RawPeer raw(server_->port());
  raw.Send(EncodeHello({1, 1}));
  raw.Receive(EncodeWelcome(1).size());
  const std::string payload(1001, 'x');
  const std::string frame =
      Encode({.kind = Kind::kRequest, .version = 1, .method = "echo", .payload = payload});
  raw.Send(frame.substr(0, kHeaderBytes));
  EXPECT_TRUE(raw.EndsSilently());
}

TEST_F(ServerTest, AReplyOverTheBoundIsAnError) {
  StartServer({.frame_bytes_max = 10});
  EXPECT_EQ(Call("fail").code(), Code::kExhausted);
  EXPECT_EQ(Call("echo", "ten bytes.").value(), "ten bytes.");
}

TEST_F(ServerTest, HalfOpenConnectionsByTheThousandLeaveRoomForCalls) {
  StartServer({.connections_max = 50});
  auto waiting = Waiting();
  std::vector<RawPeer> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(server_->port());
  Client other(RealClock());
  EXPECT_EQ(other.Call(host_port(), "echo", "hello", Soon()).value(), "hello");
  EXPECT_EQ(Call("echo", "hello").value(), "hello");
  EXPECT_LE(server_->Metrics().connections_open, 50u);
  Release();
  EXPECT_TRUE(waiting.get().ok());
}

TEST_F(ServerTest, AHandshakeThatDoesNotEndIsClosed) {
  StartServer({.handshake_timeout = std::chrono::milliseconds(20)});
  RawPeer raw(server_->port());
  raw.Send("MPR");
  EXPECT_TRUE(raw.EndsSilently());
}

TEST_F(ServerTest, ACallerThatLeavesCancelsItsCalls) {
  StartServer();
  {
    Client other(RealClock());
    auto call =
        std::async(std::launch::async, [&] { return other.Call(host_port(), "wait", "", kNever); });
    EXPECT_TRUE(Eventually([&] { return waiting_ == 1; }));
    other.Close();
    EXPECT_EQ(call.get().code(), Code::kCancelled);
  }
  EXPECT_TRUE(Eventually([&] { return cancelled_ == 1; }));
}

TEST_F(ServerTest, CloseStopsHandlersAndIsIdempotent) {
  StartServer();
  auto call = Waiting();
  server_->Close();
  server_->Close();
  EXPECT_EQ(cancelled_, 1);
  EXPECT_FALSE(call.get().ok());
}

TEST_F(ServerTest, CloseDoesNotWaitForAHandlerThatDoesNotListen) {
  auto server = Server::Create(RealClock(), nullptr, {.bind_host = "127.0.0.1"});
  ASSERT_TRUE(server.ok());
  std::promise<void> entered;
  std::promise<void> gate;
  (*server)->Handle("deaf", [&](const CallContext&, std::string_view) {
    entered.set_value();
    gate.get_future().wait();
    return Result<std::string>(std::string());
  });
  ASSERT_TRUE((*server)->Start().ok());
  const std::string to = "127.0.0.1:" + std::to_string((*server)->port());
  auto call = std::async(std::launch::async, [&] { return client_.Call(to, "deaf", "", Soon()); });
  entered.get_future().wait();
  const Time before = BootClock::now();
  (*server)->Close();
  EXPECT_LT(BootClock::now() - before, Patience(std::chrono::seconds(5)));
  EXPECT_FALSE(call.get().ok());
  gate.set_value();
}

TEST_F(ServerTest, StartTwiceIsRefused) {
  StartServer();
  EXPECT_EQ(server_->Start().code(), Code::kAlreadyExists);
}

TEST_F(ServerTest, ATakenPortIsRefused) {
  StartServer();
  ServerOptions same{.bind_host = "127.0.0.1", .port = server_->port()};
  EXPECT_EQ(Server::Create(RealClock(), nullptr, same).code(), Code::kAlreadyExists);
}

TEST_F(ServerTest, ManyClientsAtOnce) {
  StartServer();
  std::vector<std::future<int>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::async(std::launch::async, [this] {
      Client client(RealClock());
      int good = 0;
      for (int j = 0; j < 50; ++j) {
        good += client.Call(host_port(), "echo", "x", Soon()).ok() ? 1 : 0;
      }
      return good;
    }));
  }
  for (auto& client : clients) EXPECT_EQ(client.get(), 50);
}

}  // namespace
}  // namespace moonpool::rpc
