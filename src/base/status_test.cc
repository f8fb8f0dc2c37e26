#include "base/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace moonpool {
namespace {

using testing::EndsWith;

Status Fail() { return Status(Code::kTimedOut, "read from 10.0.0.7:1"); }
Result<int> Half(int value) {
  if (value % 2 != 0) return Status(Code::kInvalidArgument, "value: odd");
  return value / 2;
}
Result<int> Quarter(int value) {
  MOONPOOL_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}
Status Check(int value) {
  MOONPOOL_RETURN_IF_ERROR(Half(value).status());
  return Status::Ok();
}

TEST(Status, OkHasNoMessage) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), Code::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(ok.ToString(), "ok");
  EXPECT_TRUE(ok.WithContext("reading").ok());
}

TEST(Status, KeepsCodeMessageAndPlaceThroughContext) {
  const Status status = Fail().WithContext("batch 7");
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_EQ(status.ToString(), "timed_out: batch 7: read from 10.0.0.7:1");
  EXPECT_THAT(status.where().file, EndsWith("status_test.cc"));
  EXPECT_EQ(status.where().line, Fail().where().line);
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kCodeCount; ++i) names.insert(CodeName(static_cast<Code>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kCodeCount));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(CodeName(static_cast<Code>(200)), "unknown");
}

TEST(Result, HoldsAValueOrAStatus) {
  EXPECT_EQ(*Half(4), 2);
  EXPECT_EQ(Half(3).code(), Code::kInvalidArgument);
  const Result<std::unique_ptr<int>> moved = std::make_unique<int>(5);
  EXPECT_EQ(**moved, 5);
}

TEST(Result, TheMacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).code(), Code::kInvalidArgument);
  EXPECT_TRUE(Check(2).ok());
  EXPECT_EQ(Check(1).message(), "value: odd");
}

TEST(ResultDeathTest, LookingAtTheValueOfAnErrorEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)*Half(3), "check failed");
}

}  // namespace
}  // namespace moonpool
