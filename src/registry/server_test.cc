#include "registry/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/client.h"
#include "net/test_support.h"

namespace moonpool::registry {
namespace {

using net::testing::RealClock;
using net::testing::Soon;
using ::testing::HasSubstr;
using Query = std::map<std::string, std::string>;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    auto server = Server::Create(RealClock(), nullptr,
                                 {.bind_host = "127.0.0.1", .bounds = {.entries_max = 2}});
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    EXPECT_TRUE(server_->Start().ok());
  }
  http::Response Send(const std::string& method, const std::string& path, const Query& query,
                      const std::string& body = "") {
    auto response =
        client_.Send({.url = "http://127.0.0.1:" + std::to_string(server_->port()) + path,
                      .method = method,
                      .query = query,
                      .body = body},
                     Soon());
    EXPECT_TRUE(response.ok()) << response.status().ToString();
    return response.ok() ? *response : http::Response{.status = 0};
  }
  http::Response Plain(const std::string& method, const std::string& key,
                       const std::string& body = "") {
    return Send(method, "/metadata", {{"key", key}}, body);
  }

  std::unique_ptr<Server> server_;
  http::Client client_{RealClock()};
};

TEST_F(ServerTest, SpeaksMooncakesPlainDialect) {
  EXPECT_EQ(Plain("GET", "mooncake/ram/a").status, 404);
  EXPECT_EQ(Plain("PUT", "mooncake/ram/a", "{\"x\": 1}").status, 200);
  EXPECT_EQ(Plain("GET", "mooncake/ram/a").body, "{\"x\": 1}");
  EXPECT_EQ(Plain("PUT", "mooncake/ram/a", "{}").status, 200);  // a restarted process
  EXPECT_EQ(Plain("GET", "mooncake/ram/a").body, "{}");
  EXPECT_EQ(Plain("DELETE", "mooncake/ram/a").status, 200);
  EXPECT_EQ(Plain("DELETE", "mooncake/ram/a").status, 404);
  EXPECT_EQ(Send("GET", "/metadata", {}).status, 400);
}

TEST_F(ServerTest, BothDialectsSeeTheSameEntries) {
  const Query query{{"name", "a"}, {"owner", "1f"}, {"lease_ms", "60000"}};
  EXPECT_EQ(Send("PUT", "/registry/v1/entry", query, "value").status, 200);
  EXPECT_EQ(Plain("GET", "a").body, "value");
  EXPECT_EQ(Send("PUT", "/registry/v1/lease", query).status, 200);
  EXPECT_EQ(Plain("PUT", "a", "plain").status, 200);
  EXPECT_EQ(Send("PUT", "/registry/v1/lease", query).status, 409);
  EXPECT_EQ(Send("DELETE", "/registry/v1/entry", query).status, 409);
}

TEST_F(ServerTest, SaysWhoItIs) {
  const auto response = Send("GET", "/registry/v1", {});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("X-Moonpool-Registry"), "1");
}

TEST_F(ServerTest, ParametersAreCheckedAndNamed) {
  const auto refused = [&](const Query& query) {
    const auto response = Send("PUT", "/registry/v1/entry", query, "v");
    EXPECT_EQ(response.status, 400);
    return response.body;
  };
  EXPECT_THAT(refused({}), HasSubstr("'name' is missing"));
  EXPECT_THAT(refused({{"name", "a"}}), HasSubstr("'owner' is missing"));
  EXPECT_THAT(refused({{"name", "a"}, {"owner", "xyz"}}), HasSubstr("'owner' is not a number"));
  EXPECT_THAT(refused({{"name", "a"}, {"owner", "0"}}), HasSubstr("'owner' is 0"));
  for (const char* lease : {"0", "99", "86400001", "18446744073709551615"}) {
    EXPECT_THAT(refused({{"name", "a"}, {"owner", "1"}, {"lease_ms", lease}}),
                HasSubstr("'lease_ms' is"));
  }
  EXPECT_THAT(refused({{"name", "a\n"}, {"owner", "1"}, {"lease_ms", "1000"}}),
              HasSubstr("control character"));
  EXPECT_EQ(server_->entries(), 0u);
}

TEST_F(ServerTest, ItsBoundsAreAnswers) {
  EXPECT_EQ(Plain("PUT", "a").status, 200);
  EXPECT_EQ(Plain("PUT", "b").status, 200);
  EXPECT_EQ(Plain("PUT", "c").status, 507);
  EXPECT_EQ(Plain("PUT", "a", std::string(kValueBytesMax + 1, 'x')).status, 400);
  EXPECT_EQ(Plain("PUT", "a", std::string(kValueBytesMax * 2, 'x')).status, 413);
}

TEST_F(ServerTest, CloseIsIdempotent) {
  server_->Close();
  server_->Close();
}

}  // namespace
}  // namespace moonpool::registry
