#include "net/stream_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>

#include "net/test_support.h"

namespace moonpool::net {
namespace {

using testing::Eventually;
using testing::RawPeer;
using testing::RealClock;

// A protocol of lines: "hi" is the handshake, "bad" is refused, "wait" is never answered, "quit"
// is answered and ends the connection, others come back.
class LineSession final : public Session {
 public:
  LineSession(const SessionContext& context, StreamServer*& server, std::atomic<int>& waiting)
      : context_(context), server_(server), waiting_(waiting) {}

  Result<size_t> OnBytes(std::string_view bytes) override {
    size_t used = 0;
    while (true) {
      const size_t end = bytes.find('\n', used);
      partial_ = end == std::string_view::npos && used < bytes.size();
      if (end == std::string_view::npos) return used;
      const std::string line(bytes.substr(used, end - used + 1));
      used = end + 1;
      if (line == "bad\n") {
        server_->Send(context_.id, {.bytes = "refused\n"});
        return Status(Code::kCorrupt, "bad");
      }
      hello_ = true;
      if (line == "wait\n") {
        busy_ = true;
        ++waiting_;
        return used;
      }
      server_->Send(context_.id, {.bytes = line, .reply = false, .then_close = line == "quit\n"});
    }
  }
  void OnReply() override { busy_ = false; }
  SessionPhase phase() const override {
    if (!hello_) return SessionPhase::kHandshake;
    if (busy_) return SessionPhase::kBusy;
    return partial_ ? SessionPhase::kReceiving : SessionPhase::kIdle;
  }
  bool wants_bytes() const override { return !busy_; }
  bool StaysAfterEof() const override { return true; }

 private:
  const SessionContext context_;
  StreamServer*& server_;
  std::atomic<int>& waiting_;
  bool hello_ = false;
  bool busy_ = false;
  bool partial_ = false;
};

class StreamServerTest : public ::testing::Test {
 protected:
  void StartServer(StreamServerOptions options = {}) {
    options.bind_host = "127.0.0.1";
    options.thread_name = "test-serve";
    auto server = StreamServer::Create(RealClock(), nullptr, options);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    raw_ = server_.get();
    server_->Start([this](const SessionContext& context) {
      last_id_ = context.id;
      return std::make_unique<LineSession>(context, raw_, waiting_);
    });
  }
  // A peer that has shaken hands.
  RawPeer Greeted() {
    RawPeer peer(server_->port());
    EXPECT_TRUE(peer.Send("hi\n"));
    EXPECT_EQ(peer.Receive(3), "hi\n");
    return peer;
  }

  std::atomic<int> waiting_{0};  // "wait" lines taken up
  std::unique_ptr<StreamServer> server_;
  StreamServer* raw_ = nullptr;
  std::atomic<uint64_t> last_id_{0};
};

TEST_F(StreamServerTest, LinesComeBackWhateverTheirPieces) {
  StartServer();
  RawPeer peer(server_->port());
  ASSERT_TRUE(peer.Send("o"));
  ASSERT_TRUE(peer.Send("ne\ntwo\nthr"));
  EXPECT_EQ(peer.Receive(8), "one\ntwo\n");
  ASSERT_TRUE(peer.Send("ee\n"));
  EXPECT_EQ(peer.Receive(6), "three\n");
}

TEST_F(StreamServerTest, LargeOutputIsSentWhole) {
  StartServer();
  RawPeer peer = Greeted();
  const std::string large(20'000'000, 'x');
  server_->Send(last_id_, {.bytes = large});
  EXPECT_EQ(peer.Receive(large.size()), large);
}

TEST_F(StreamServerTest, ARefusedPeerSeesTheReasonAndOthersGoOn) {
  StartServer();
  RawPeer good = Greeted();
  RawPeer bad(server_->port());
  ASSERT_TRUE(bad.Send("bad\nmore\n"));
  EXPECT_EQ(bad.ReceiveAll(), "refused\n");
  ASSERT_TRUE(good.Send("still\n"));
  EXPECT_EQ(good.Receive(6), "still\n");
  EXPECT_TRUE(Eventually([&] { return server_->Metrics().connections_rejected == 1; }));
}

TEST_F(StreamServerTest, ThenCloseSendsEverythingFirst) {
  StartServer();
  RawPeer peer = Greeted();
  ASSERT_TRUE(peer.Send("quit\n"));
  EXPECT_EQ(peer.ReceiveAll(), "quit\n");
}

TEST_F(StreamServerTest, APeerThatStopsSendingStillGetsItsReply) {
  StartServer();
  RawPeer peer = Greeted();
  ASSERT_TRUE(peer.Send("wait\n"));
  ::shutdown(peer.fd(), SHUT_WR);
  ASSERT_TRUE(Eventually([&] { return waiting_ == 1; }));
  server_->Send(last_id_, {.bytes = "late\n", .reply = true});
  EXPECT_EQ(peer.ReceiveAll(), "late\n");
}

TEST_F(StreamServerTest, TheOldestWithoutHandshakeMakesRoom) {
  StartServer({.connections_max = 3});
  RawPeer greeted = Greeted();
  RawPeer oldest(server_->port());
  RawPeer younger(server_->port());
  ASSERT_TRUE(Eventually([&] { return server_->Metrics().connections_open == 3; }));
  RawPeer newest = Greeted();
  EXPECT_TRUE(oldest.EndsSilently());
  ASSERT_TRUE(younger.Send("hi\n"));
  EXPECT_EQ(younger.Receive(3), "hi\n");
  ASSERT_TRUE(greeted.Send("x\n"));
  EXPECT_EQ(greeted.Receive(2), "x\n");
  EXPECT_EQ(server_->Metrics().connections_evicted, 1u);
}

TEST_F(StreamServerTest, FullOfGreetedPeersItTurnsTheNewOneAway) {
  StartServer({.connections_max = 2});
  RawPeer a = Greeted();
  RawPeer b = Greeted();
  RawPeer c(server_->port());
  EXPECT_TRUE(c.EndsSilently());
  ASSERT_TRUE(a.Send("x\n"));
  EXPECT_EQ(a.Receive(2), "x\n");
}

TEST_F(StreamServerTest, HandshakesHaveATimeout) {
  StartServer({.handshake_timeout = std::chrono::milliseconds(20)});
  RawPeer silent(server_->port());
  EXPECT_TRUE(silent.EndsSilently());
}

TEST_F(StreamServerTest, HalfARequestHasATimeout) {
  StartServer({.receive_timeout = std::chrono::milliseconds(20)});
  RawPeer greeted = Greeted();
  ASSERT_TRUE(greeted.Send("half a li"));
  EXPECT_TRUE(greeted.EndsSilently());
}

TEST_F(StreamServerTest, IdleConnectionsAreClosed) {
  StartServer({.idle_timeout = std::chrono::milliseconds(20)});
  RawPeer peer(server_->port());
  ASSERT_TRUE(peer.Send("hi\n"));
  EXPECT_EQ(peer.ReceiveAll(), "hi\n");
}

TEST_F(StreamServerTest, APeerThatDoesNotReadIsClosed) {
  StartServer({.send_timeout = std::chrono::milliseconds(50)});
  RawPeer peer = Greeted();
  server_->Send(last_id_, {.bytes = std::string(50'000'000, 'x')});
  EXPECT_TRUE(Eventually([&] { return server_->Metrics().connections_open == 0; }));
}

TEST_F(StreamServerTest, BufferedBytesAreBounded) {
  StartServer({.buffered_bytes_max = 1 << 20});
  RawPeer modest = Greeted();
  RawPeer greedy(server_->port());
  (void)greedy.Send(std::string(8u << 20, 'x'));  // a line without end
  EXPECT_TRUE(Eventually([&] { return server_->Metrics().connections_open == 1; }));
  ASSERT_TRUE(modest.Send("x\n"));
  EXPECT_EQ(modest.Receive(2), "x\n");
}

TEST_F(StreamServerTest, CloseEndsEverythingAndIsIdempotent) {
  StartServer();
  RawPeer peer = Greeted();
  server_->Close();
  server_->Close();
  EXPECT_TRUE(peer.EndsSilently());
  server_->Send(last_id_, {.bytes = "nobody"});
}

TEST_F(StreamServerTest, CloseBeforeStartReleasesThePort) {
  auto server = StreamServer::Create(RealClock(), nullptr, {.bind_host = "127.0.0.1"});
  ASSERT_TRUE(server.ok());
  const uint16_t port = (*server)->port();
  (*server)->Close();
  EXPECT_TRUE(Listen("127.0.0.1", port).ok());
}

TEST_F(StreamServerTest, TicksWhileNothingHappens) {
  std::atomic<int> ticks = 0;
  StartServer({.tick = std::chrono::milliseconds(1), .on_tick = [&](Time) { ++ticks; }});
  EXPECT_TRUE(Eventually([&] { return ticks >= 3; }));
  server_->Close();
}

TEST_F(StreamServerTest, AThousandHalfOpenConnectionsLeaveRoomForOthers) {
  StartServer({.connections_max = 64});
  std::vector<RawPeer> silent;
  for (int i = 0; i < 300; ++i) silent.emplace_back(server_->port());
  RawPeer peer = Greeted();
  ASSERT_TRUE(peer.Send("x\n"));
  EXPECT_EQ(peer.Receive(2), "x\n");
  EXPECT_LE(server_->Metrics().connections_open, 64u);
}

}  // namespace
}  // namespace moonpool::net
