#pragma once

// Vocabulary of the RPC tests: a server with a few methods, and a client. Only for tests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "net/test_support.h"
#include "rpc/client.h"
#include "rpc/server.h"

namespace moonpool::rpc {

// Methods: "echo"; "peer" (the caller's numeric host); "fail" (kStale); "throw"; "wait" (until
// Release or its stop token; then kCancelled); "deadline" (milliseconds left, or "none").
class RpcTest : public ::testing::Test {
 protected:
  ~RpcTest() override { Release(); }

  std::unique_ptr<Server> MakeServer(ServerOptions options = {},
                                     const Clock& clock = net::testing::RealClock()) {
    if (options.bind_host.empty()) options.bind_host = "127.0.0.1";
    auto server = Server::Create(clock, nullptr, options);
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    if (!server.ok()) return nullptr;
    AddMethods(**server);
    EXPECT_TRUE((*server)->Start().ok());
    return std::move(server).value();
  }
  void StartServer(const ServerOptions& options = {}) { server_ = MakeServer(options); }

  std::string host_port() const { return "127.0.0.1:" + std::to_string(server_->port()); }

  Result<std::string> Call(std::string_view method, std::string_view payload = "",
                           CallInfo* info = nullptr) {
    return client_.Call({host_port(), method, payload, net::testing::Soon()}, info);
  }
  // A call that waits in the server.
  std::future<Result<std::string>> Waiting(Time deadline = net::testing::Soon()) {
    const int before = waiting_;
    auto call = std::async(std::launch::async, [this, deadline] {
      return client_.Call({host_port(), "wait", "", deadline});
    });
    EXPECT_TRUE(net::testing::Eventually([&] { return waiting_ > before; }));
    return call;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

  std::atomic<int> waiting_{0};    // handlers of "wait" that have begun
  std::atomic<int> cancelled_{0};  // those that were asked to stop
  std::unique_ptr<Server> server_;
  Client client_{net::testing::RealClock()};

 private:
  void AddMethods(Server& server) {
    server.Handle("echo", [](const CallContext&, std::string_view request) {
      return Result<std::string>(std::string(request));
    });
    server.Handle("peer", [](const CallContext& context, std::string_view) {
      return Result<std::string>(context.peer_host);
    });
    server.Handle("fail", [](const CallContext&, std::string_view) -> Result<std::string> {
      return Status(Code::kStale, "your epoch is 3, mine 4");
    });
    server.Handle("throw", [](const CallContext&, std::string_view) -> Result<std::string> {
      throw std::runtime_error("out of cheese");
    });
    server.Handle("wait",
                  [this](const CallContext& context, std::string_view) { return Wait(context); });
    server.Handle("deadline", [](const CallContext& context, std::string_view) {
      if (context.deadline == kNever) return Result<std::string>(std::string("none"));
      return Result<std::string>(
          std::to_string(MillisUntil(BootClock::now(), context.deadline, INT32_MAX)));
    });
  }
  Result<std::string> Wait(const CallContext& context) {
    std::unique_lock lock(mutex_);
    const std::stop_callback wake(context.stop, [this] { changed_.notify_all(); });
    ++waiting_;
    // The token's callback does not take the mutex: look again from time to time.
    while (!released_ && !context.cancelled()) {
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
    if (context.cancelled()) {
      ++cancelled_;
      return Status(Code::kCancelled, "asked to stop");
    }
    return std::string("released");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
};

}  // namespace moonpool::rpc
