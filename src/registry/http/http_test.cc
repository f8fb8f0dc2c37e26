#include "registry/http/http.h"

#include <atomic>
#include <future>
#include <map>
#include <mutex>

#include "http/server.h"
#include "registry/conformance.h"
#include "registry/http/wrapped.h"
#include "registry/server.h"

namespace moonpool::registry {
namespace {

namespace web = ::moonpool::http;
using net::testing::Eventually;
using net::testing::RawListener;
using net::testing::RealClock;
using net::testing::RefusedPort;
using net::testing::Soon;

int64_t WallMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// What the worlds share: a log that is off, and registries at a port.
class HttpWorld : public World {
 public:
  std::unique_ptr<Registry> Open() override {
    auto registry = http::MakeFactory().create({RealClock(), log_}, url());
    EXPECT_TRUE(registry.ok()) << registry.status().ToString();
    return std::move(registry).value();
  }
  std::string url() { return "http://127.0.0.1:" + std::to_string(port()); }
  virtual uint16_t port() = 0;

 protected:
  Logger log_{LogLevel::kOff};
  web::Client client_{RealClock()};
};

// Our own server.
class LeaseWorld final : public HttpWorld {
 public:
  LeaseWorld() { StartServer(0); }
  void StartServer(uint16_t port) {
    auto server = Server::Create(RealClock(), nullptr, {.bind_host = "127.0.0.1", .port = port});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    ASSERT_TRUE(server_->Start().ok());
  }
  void StopServer() { server_.reset(); }
  uint16_t port() override { return server_->port(); }
  Status PutAndDie(const Registration& registration) override {
    const auto dialect = http::MakeLeaseDialect(client_, url());
    return dialect
        ->Put({registration.name, registration.value, 1, registration.lease}, false, Soon())
        .status();
  }

 private:
  std::unique_ptr<Server> server_;
};

// A server that knows nothing but GET, PUT and DELETE of a key, like Mooncake's.
class PlainWorld final : public HttpWorld {
 public:
  PlainWorld() {
    auto server = web::Server::Create(RealClock(), nullptr, {.bind_host = "127.0.0.1"});
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    server_->Handle("GET", "/metadata", [this](const web::Request& request) {
      const std::lock_guard lock(mutex_);
      const auto it = values_.find(request.query.at("key"));
      if (it == values_.end()) return web::Text(404, "metadata not found");
      return web::Response{.status = 200, .body = it->second};
    });
    server_->Handle("PUT", "/metadata", [this](const web::Request& request) {
      const std::lock_guard lock(mutex_);
      values_[request.query.at("key")] = request.body;
      return web::Text(200, "metadata updated");
    });
    server_->Handle("DELETE", "/metadata", [this](const web::Request& request) {
      const std::lock_guard lock(mutex_);
      const bool gone = values_.erase(request.query.at("key")) != 0;
      return gone ? web::Text(200, "metadata deleted") : web::Text(404, "metadata not found");
    });
    EXPECT_TRUE(server_->Start().ok());
  }
  uint16_t port() override { return server_->port(); }
  Status PutAndDie(const Registration& registration) override {
    const auto dialect = http::MakePlainDialect(client_, url() + "/metadata", WallMs);
    return dialect
        ->Put({registration.name, registration.value, 1, registration.lease}, false, Soon())
        .status();
  }
  void Set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  std::string At(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return values_.count(key) != 0 ? values_.at(key) : "";
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::unique_ptr<web::Server> server_;
};

INSTANTIATE_TEST_SUITE_P(
    Http, RegistryConformance,
    ::testing::Values(Subject{"leases", [] { return std::make_unique<LeaseWorld>(); }},
                      Subject{"plain", [] { return std::make_unique<PlainWorld>(); }}),
    SubjectName);

constexpr Duration kShort = std::chrono::milliseconds(300);

TEST(HttpRegistryTest, AnEntryComesBackWhenTheServerDoes) {
  LeaseWorld world;
  const auto registry = world.Open();
  const auto token = registry->Put({"name", "value", kShort}, Soon());
  ASSERT_TRUE(token.ok());
  const uint16_t port = world.port();
  world.StopServer();
  EXPECT_TRUE(Eventually([&] { return !registry->Check("name", *token).ok(); }));
  EXPECT_EQ(registry->Get("name", Soon()).code(), Code::kUnavailable);
  world.StartServer(port);
  EXPECT_TRUE(Eventually([&] { return registry->Get("name", Soon()).ok(); }));
  EXPECT_TRUE(Eventually([&] { return registry->Check("name", *token).ok(); }));
}

TEST(HttpRegistryTest, ANameTakenWhileTheServerWasAwayIsNotTakenBack) {
  LeaseWorld world;
  const auto registry = world.Open();
  const auto token = registry->Put({"name", "old", kShort}, Soon());
  ASSERT_TRUE(token.ok());
  const uint16_t port = world.port();
  world.StopServer();
  EXPECT_TRUE(Eventually([&] { return !registry->Check("name", *token).ok(); }));
  world.StartServer(port);
  const auto newer = world.Open();
  ASSERT_TRUE(newer->Put({"name", "new", std::chrono::hours(1)}, Soon()).ok());
  EXPECT_TRUE(Eventually([&] { return registry->Check("name", *token).code() == Code::kStale; }));
  EXPECT_EQ(registry->Get("name", Soon()).value().value, "new");
}

TEST(HttpRegistryTest, CapabilitiesTellTheServersKind) {
  LeaseWorld ours;
  PlainWorld plain;
  const auto a = ours.Open();
  const auto b = plain.Open();
  EXPECT_FALSE(a->Get("x", Soon()).ok());
  EXPECT_FALSE(b->Get("x", Soon()).ok());
  EXPECT_TRUE(a->capabilities().atomic);
  EXPECT_TRUE(a->capabilities().lists);
  EXPECT_FALSE(b->capabilities().atomic);
  EXPECT_FALSE(b->capabilities().lists);
}

TEST(HttpRegistryTest, AServerThatComesUpLaterIsFound) {
  LeaseWorld world;
  const auto registry = world.Open();
  const uint16_t port = world.port();
  world.StopServer();
  EXPECT_EQ(registry->Get("name", Soon()).code(), Code::kUnavailable);
  EXPECT_EQ(registry->Put({"name", "value"}, Soon()).code(), Code::kUnavailable);
  world.StartServer(port);
  EXPECT_TRUE(registry->Put({"name", "value"}, Soon()).ok());
}

TEST(HttpRegistryTest, ASilentServerCostsNoMoreThanTheDeadline) {
  RawListener listener;
  Logger log(LogLevel::kOff);
  const auto registry =
      http::MakeFactory().create({RealClock(), log}, "http://" + listener.host_port()).value();
  const Time deadline = After(BootClock::now(), std::chrono::milliseconds(50));
  EXPECT_EQ(registry->Get("name", deadline).code(), Code::kTimedOut);
  auto call = std::async(std::launch::async, [&] { return registry->Get("name", kNever); });
  (void)listener.AcceptOne();
  (void)listener.AcceptOne();
  registry->Close();
  EXPECT_FALSE(call.get().ok());
}

TEST(HttpRegistryTest, UrlsAreChecked) {
  Logger log(LogLevel::kOff);
  const Environment env{RealClock(), log};
  const Factory factory = http::MakeFactory();
  EXPECT_TRUE(factory.accepts("http://h"));
  EXPECT_FALSE(factory.accepts("etcd://h"));
  EXPECT_TRUE(factory.create(env, "http://[::1]:8080/metadata").ok());
  EXPECT_EQ(factory.create(env, "http://").code(), Code::kInvalidArgument);
  EXPECT_EQ(factory.create(env, "http://h:0").code(), Code::kInvalidArgument);
  EXPECT_EQ(factory.create(env, "http://h/?key=x").code(), Code::kInvalidArgument);
  EXPECT_EQ(factory.create(env, "https://h").code(), Code::kUnsupported);
}

TEST(PlainDialectTest, EntriesOfOtherProgramsAreLeftAlone) {
  PlainWorld world;
  world.Set("mooncake/ram/node7", "{}");
  const auto registry = world.Open();
  ASSERT_TRUE(registry->Put({"mooncake/ram/node7", "ours"}, Soon()).ok());
  EXPECT_EQ(world.At("mooncake/ram/node7"), "{}");
  world.Set("moonpool/odd", "{}");
  EXPECT_EQ(registry->Get("odd", Soon()).code(), Code::kCorrupt);
  EXPECT_TRUE(registry->Put({"odd", "ours"}, Soon()).ok());
  EXPECT_EQ(registry->Get("odd", Soon()).value().value, "ours");
}

TEST(PlainDialectTest, AnOlderOwnersLateWriteIsUndone) {
  PlainWorld world;
  web::Client client(RealClock());
  const auto dialect = http::MakePlainDialect(client, world.url() + "/metadata", WallMs);
  http::Held newest{"name", "new", 2, std::chrono::hours(1)};
  newest.version = 5;
  // The older owner read before the newest wrote, and wrote after it.
  world.Set("moonpool/name", http::EncodeWrapped({1, 4, WallMs() + 60'000, "old"}));
  EXPECT_TRUE(dialect->Renew(newest, Soon()).ok());
  EXPECT_EQ(dialect->Get("name", Soon()).value().value, "new");
  EXPECT_EQ(dialect->Renew({"name", "old", 1, std::chrono::hours(1), 4}, Soon()).code(),
            Code::kStale);
}

TEST(PlainDialectTest, ExpiryIsToldByTheWallClock) {
  PlainWorld world;
  web::Client client(RealClock());
  std::atomic<int64_t> now = 1'000'000;
  const auto dialect =
      http::MakePlainDialect(client, world.url() + "/metadata", [&] { return now.load(); });
  const http::Held entry{"name", "value", 1, std::chrono::seconds(10)};
  ASSERT_TRUE(dialect->Put(entry, false, Soon()).ok());
  now += 9'999;
  EXPECT_TRUE(dialect->Get("name", Soon()).ok());
  EXPECT_EQ(dialect->Put({"name", "other", 2, std::chrono::seconds(10)}, true, Soon()).code(),
            Code::kStale);
  now += 1;
  EXPECT_EQ(dialect->Get("name", Soon()).code(), Code::kNotFound);
  EXPECT_TRUE(dialect->Put({"name", "other", 2, std::chrono::seconds(10)}, true, Soon()).ok());
}

}  // namespace
}  // namespace moonpool::registry
