#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace moonpool {
namespace {

using testing::ElementsAre;
using testing::Pair;

class LogTest : public testing::Test {
 protected:
  Logger Make(LogLevel level) {
    return Logger(level, [this](LogLevel at, std::string_view line) {
      lines_.emplace_back(at, std::string(line));
    });
  }
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(LogTest, ALineIsTheEventAndItsFields) {
  Logger log = Make(LogLevel::kInfo);
  log.Warning("peer lost", {{"peer", "10.0.0.7:1"}, {"waited_ms", 25}});
  EXPECT_THAT(lines_,
              ElementsAre(Pair(LogLevel::kWarning, "peer lost peer=10.0.0.7:1 waited_ms=25")));
}

TEST_F(LogTest, WhatIsBelowTheLevelIsDropped) {
  Logger log = Make(LogLevel::kWarning);
  log.Debug("no");
  log.Info("no");
  log.Error("yes");
  EXPECT_THAT(lines_, ElementsAre(Pair(LogLevel::kError, "yes")));
  EXPECT_FALSE(log.enabled(LogLevel::kInfo));
}

TEST_F(LogTest, OffDropsErrorsToo) {
  Logger log = Make(LogLevel::kOff);
  log.Error("no");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, APeersTextCannotForgeALineOrAField) {
  Logger log = Make(LogLevel::kInfo);
  log.Info("hello", {{"name", "a\nmoonpool ERROR x"}, {"other", "b c=\"d\""}, {"none", ""}});
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].second, R"(hello name="a\x0amoonpool ERROR x" other="b c=\"d\"" none="")");
}

TEST_F(LogTest, LinesAreBounded) {
  Logger log = Make(LogLevel::kInfo);
  log.Info("long", {{"value", std::string(100000, 'x')}});
  EXPECT_EQ(lines_[0].second.size(), 4096u);
  EXPECT_TRUE(lines_[0].second.ends_with("..."));
}

}  // namespace
}  // namespace moonpool
