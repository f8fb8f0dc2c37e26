#include "registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/test_support.h"
#include "registry/builtin.h"

namespace moonpool::registry {
namespace {

using ::testing::HasSubstr;

TEST(OpenTest, ChoosesTheBackEndByTheUrl) {
  Logger log(LogLevel::kOff);
  const Environment env{net::testing::RealClock(), log};
  const auto factories = BuiltinFactories();
  EXPECT_EQ(Open(factories, env, "").value()->name(), "p2p");
  EXPECT_EQ(Open(factories, env, "P2PHANDSHAKE").value()->name(), "p2p");
  EXPECT_EQ(Open(factories, env, "http://127.0.0.1:1").value()->name(), "http");
}

TEST(OpenTest, AnUnknownUrlListsTheBackEnds) {
  Logger log(LogLevel::kOff);
  const auto opened =
      Open(BuiltinFactories(), {net::testing::RealClock(), log}, "carrier-pigeon://coop");
  EXPECT_EQ(opened.code(), Code::kInvalidArgument);
  EXPECT_THAT(opened.status().message(), HasSubstr("carrier-pigeon://coop"));
  EXPECT_THAT(opened.status().message(), HasSubstr("http, p2p"));
}

}  // namespace
}  // namespace moonpool::registry
