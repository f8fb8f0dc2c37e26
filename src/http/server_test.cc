#include "http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "http/client.h"
#include "net/test_support.h"

namespace moonpool::http {
namespace {

using net::testing::Eventually;
using net::testing::RawPeer;
using net::testing::RealClock;
using net::testing::Soon;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServerTest : public ::testing::Test {
 protected:
  void StartServer(ServerOptions options = {}) {
    options.bind_host = "127.0.0.1";
    auto server = Server::Create(RealClock(), nullptr, options);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    server_->Handle("GET", "/hello", [](const Request&) { return Text(200, "hello\n"); });
    server_->Handle("PUT", "/echo", [](const Request& r) { return Text(200, r.body); });
    server_->Handle("GET", "/below/*", [](const Request& r) { return Text(200, r.path); });
    server_->Handle("GET", "/throw",
                    [](const Request&) -> Response { throw std::runtime_error("out of cheese"); });
    server_->Handle("GET", "/wait", [this](const Request&) {
      ++waiting_;
      gate_.get_future().wait();
      return Text(200, "waited");
    });
    ASSERT_TRUE(server_->Start().ok());
  }
  RawPeer Ask(std::string_view text) {
    RawPeer peer(server_->port());
    EXPECT_TRUE(peer.Send(text));
    return peer;
  }
  Response Get(const std::string& path) {
    Client client(RealClock());
    auto response =
        client.Send({.url = "http://127.0.0.1:" + std::to_string(server_->port()) + path}, Soon());
    EXPECT_TRUE(response.ok()) << response.status().ToString();
    return response.ok() ? *response : Response{.status = 0};
  }

  std::unique_ptr<Server> server_;
  std::atomic<int> waiting_{0};
  std::promise<void> gate_;
};

TEST_F(ServerTest, AnswersOnOneConnectionOneAfterTheOther) {
  StartServer();
  RawPeer peer =
      Ask("GET /hello HTTP/1.1\r\nHost: h\r\n\r\nGET /below/x HTTP/1.1\r\nHost: h\r\n"
          "Connection: close\r\n\r\n");
  const std::string both = peer.ReceiveAll();
  EXPECT_THAT(both, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(both, HasSubstr("hello\nHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(both, HasSubstr("Connection: close"));
  EXPECT_THAT(both, ::testing::EndsWith("/below/x"));
}

TEST_F(ServerTest, UnknownPathsAndMethodsAreNamed) {
  StartServer();
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_EQ(Get("/belowx").status, 404);
  EXPECT_EQ(Get("/below/a/b").body, "/below/a/b");
  const Response wrong = Get("/echo");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("Allow"), "PUT");
}

TEST_F(ServerTest, HeadHasNoBody) {
  StartServer();
  RawPeer peer = Ask("HEAD /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  const std::string all = peer.ReceiveAll();
  EXPECT_THAT(all, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(all, ::testing::EndsWith("\r\n\r\n"));
}

TEST_F(ServerTest, AnExceptionIsAServerError) {
  StartServer();
  EXPECT_EQ(Get("/throw").status, 500);
  EXPECT_EQ(Get("/hello").status, 200);
}

TEST_F(ServerTest, TellsAWaitingClientToGoOn) {
  StartServer();
  RawPeer peer =
      Ask("PUT /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
          "Content-Length: 4\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(peer.Receive(25), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(peer.Send("body"));
  EXPECT_THAT(peer.ReceiveAll(), ::testing::EndsWith("\r\n\r\nbody"));
}

TEST_F(ServerTest, EachKindOfBadRequestHasItsStatus) {
  StartServer({.body_bytes_max = 100});
  EXPECT_THAT(Ask("rubbish\r\n\r\n").ReceiveAll(), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("GET / HTTP/2.0\r\nHost: h\r\n\r\n").ReceiveAll(), StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(Ask("PUT /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n").ReceiveAll(),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask("GET /" + std::string(20'000, 'x')).ReceiveAll(), StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(Get("/hello").status, 200);
}

TEST_F(ServerTest, ASlowSenderIsClosed) {
  StartServer({.request_timeout = std::chrono::milliseconds(50)});
  EXPECT_TRUE(Ask("GET /hello HTT").EndsSilently());
}

TEST_F(ServerTest, SlowSendersByTheHundredLeaveRoomForOthers) {
  StartServer({.connections_max = 20});
  std::vector<RawPeer> slow;
  for (int i = 0; i < 100; ++i) slow.push_back(Ask("GET /hello HTT"));
  EXPECT_EQ(Get("/hello").status, 200);
}

TEST_F(ServerTest, AFullQueueIsUnavailable) {
  StartServer({.work_threads = 1, .queue_max = 1});
  RawPeer running = Ask("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return waiting_ == 1; }));
  RawPeer a = Ask("GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  RawPeer b = Ask("GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  auto first = std::async(std::launch::async, [&] { return a.Receive(12); });
  auto second = std::async(std::launch::async, [&] { return b.Receive(12); });
  EXPECT_TRUE(Eventually([&] {
    const auto done = std::chrono::seconds(0);
    return first.wait_for(done) == std::future_status::ready ||
           second.wait_for(done) == std::future_status::ready;
  }));
  gate_.set_value();
  const std::string one = first.get();
  const std::string other = second.get();
  EXPECT_TRUE((one == "HTTP/1.1 503" && other == "HTTP/1.1 200") ||
              (one == "HTTP/1.1 200" && other == "HTTP/1.1 503"))
      << one << " and " << other;
}

TEST_F(ServerTest, CloseIsBoundedAndIdempotent) {
  StartServer();
  RawPeer peer = Ask("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return waiting_ == 1; }));
  server_->Close();
  server_->Close();
  EXPECT_TRUE(peer.EndsSilently());
  gate_.set_value();
}

}  // namespace
}  // namespace moonpool::http
