#include "http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "http/server.h"
#include "net/test_support.h"

namespace moonpool::http {
namespace {

using net::testing::RawListener;
using net::testing::RawPeer;
using net::testing::RealClock;
using net::testing::RefusedPort;
using net::testing::Soon;
using ::testing::HasSubstr;

std::unique_ptr<Server> EchoServer(uint16_t port = 0, Duration idle = std::chrono::seconds(75)) {
  auto server = Server::Create(RealClock(), nullptr,
                               {.bind_host = "127.0.0.1", .port = port, .idle_timeout = idle});
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  (*server)->Handle("PUT", "/echo", [](const Request& r) {
    Response response = Text(200, r.body);
    response.headers["X-Peer"] = r.peer;
    response.headers["X-Query"] = r.query.count("q") != 0 ? r.query.at("q") : "";
    return response;
  });
  EXPECT_TRUE((*server)->Start().ok());
  return std::move(server).value();
}

std::string UrlOf(uint16_t port, const std::string& path = "/echo") {
  return "http://127.0.0.1:" + std::to_string(port) + path;
}

class ClientTest : public ::testing::Test {
 protected:
  Result<Response> Put(const std::string& url, std::string body, Time deadline = Soon()) {
    return client_.Send({.url = url, .method = "PUT", .query = {{"q", "a b"}}, .body = body},
                        deadline);
  }
  Client client_{RealClock()};
};

TEST_F(ClientTest, SendsAndReceives) {
  auto server = EchoServer();
  const std::string large(5'000'000, 'x');
  const auto response = Put(UrlOf(server->port()), large);
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, large);
  EXPECT_EQ(response->headers.at("X-Query"), "a b");
}

TEST_F(ClientTest, ReusesItsConnection) {
  auto server = EchoServer();
  const auto first = Put(UrlOf(server->port()), "1");
  const auto second = Put(UrlOf(server->port()), "2");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->headers.at("X-Peer"), second->headers.at("X-Peer"));
}

TEST_F(ClientTest, TheFirstRequestAfterARestartSucceeds) {
  auto server = EchoServer();
  const uint16_t port = server->port();
  EXPECT_TRUE(Put(UrlOf(port), "1").ok());
  server.reset();
  server = EchoServer(port);
  EXPECT_EQ(Put(UrlOf(port), "2").value().body, "2");
}

TEST_F(ClientTest, AnErrorStatusIsAResult) {
  auto server = EchoServer();
  EXPECT_EQ(Put(UrlOf(server->port(), "/other"), "").value().status, 404);
}

TEST_F(ClientTest, FailuresNameTheServerAndTheCause) {
  RefusedPort port;
  const auto response = Put(UrlOf(port.port()), "");
  EXPECT_EQ(response.code(), Code::kUnavailable);
  EXPECT_THAT(response.status().message(), HasSubstr(port.host_port()));
  EXPECT_THAT(response.status().message(), HasSubstr("Connection refused"));
}

TEST_F(ClientTest, ASilentServerTimesOut) {
  RawListener listener;
  EXPECT_EQ(Put(UrlOf(listener.port()), "", After(BootClock::now(), std::chrono::milliseconds(30)))
                .code(),
            Code::kTimedOut);
}

TEST_F(ClientTest, AnotherProtocolIsCorrupt) {
  RawListener listener;
  auto peer = std::async(std::launch::async, [&] {
    RawPeer raw = listener.AcceptOne();
    raw.Send("220 mail ready\r\n\r\n");
    raw.Receive(10);
    return raw;
  });
  EXPECT_EQ(Put(UrlOf(listener.port()), "").code(), Code::kCorrupt);
}

TEST_F(ClientTest, ABodyThatEndsWithTheConnectionIsRead) {
  RawListener listener;
  auto peer = std::async(std::launch::async, [&] {
    RawPeer raw = listener.AcceptOne();
    raw.Receive(10);
    raw.Send("HTTP/1.0 200 OK\r\n\r\nall of it");
    ::shutdown(raw.fd(), SHUT_WR);
    raw.ReceiveAll();
  });
  EXPECT_EQ(Put(UrlOf(listener.port()), "").value().body, "all of it");
  client_.Close();
}

TEST_F(ClientTest, ATruncatedResponseIsUnavailable) {
  RawListener listener;
  auto peer = std::async(std::launch::async, [&] {
    RawPeer raw = listener.AcceptOne();
    raw.Receive(10);
    raw.Send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    ::shutdown(raw.fd(), SHUT_WR);
    raw.ReceiveAll();
  });
  EXPECT_EQ(Put(UrlOf(listener.port()), "").code(), Code::kUnavailable);
}

TEST_F(ClientTest, CloseWakesCalls) {
  RawListener listener;
  auto call =
      std::async(std::launch::async, [&] { return Put(UrlOf(listener.port()), "", kNever); });
  RawPeer peer = listener.AcceptOne();
  EXPECT_EQ(peer.Receive(3), "PUT");
  client_.Close();
  client_.Close();
  EXPECT_EQ(call.get().code(), Code::kCancelled);
  EXPECT_EQ(Put(UrlOf(listener.port()), "").code(), Code::kCancelled);
}

TEST_F(ClientTest, BadUrlsAreTheCallersMistake) {
  EXPECT_EQ(Put("ftp://node7", "").code(), Code::kInvalidArgument);
  EXPECT_EQ(Put("https://node7", "").code(), Code::kUnsupported);
}

}  // namespace
}  // namespace moonpool::http
