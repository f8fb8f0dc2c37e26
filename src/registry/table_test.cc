#include "registry/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moonpool::registry {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

class TableTest : public ::testing::Test {
 protected:
  Code Put(std::string_view name, std::string_view value, OwnerToken owner = 1,
           Duration lease = seconds(10)) {
    return table_.Put({.name = name, .value = value, .owner = owner, .lease = lease}, now_).code();
  }
  std::string Value(std::string_view name) {
    const auto entry = table_.Get(name, now_);
    return entry.ok() ? entry->value : std::string(CodeName(entry.code()));
  }
  // Time passes, and the server ticks as it should.
  void Pass(Duration time) {
    for (const Time end = now_ + time; now_ < end;) {
      now_ = std::min(end, now_ + Table::kTick);
      table_.Tick(now_);
    }
  }

  Time now_{std::chrono::hours(1)};
  Table table_{TableBounds{.entries_max = 3, .bytes_max = 30}};
};

TEST_F(TableTest, EntriesVanishExactlyWhenTheirLeaseRunsOut) {
  EXPECT_EQ(Put("a", "x"), Code::kOk);
  Pass(seconds(10) - milliseconds(1));
  EXPECT_EQ(Value("a"), "x");
  now_ += milliseconds(1);  // not swept
  EXPECT_EQ(Value("a"), "not_found");
  EXPECT_EQ(table_.entries(), 0u);
}

TEST_F(TableTest, TickSweepsWhatNobodyAsksFor) {
  EXPECT_EQ(Put("a", "x"), Code::kOk);
  EXPECT_EQ(Put("b", "x", 0, Duration::max()), Code::kOk);
  Pass(seconds(11));
  EXPECT_EQ(table_.entries(), 1u);
  EXPECT_EQ(table_.bytes(), 2u);
  EXPECT_EQ(Value("b"), "x");
}

TEST_F(TableTest, TheOwnerAloneRenewsAndRemoves) {
  EXPECT_EQ(Put("a", "x", 1), Code::kOk);
  EXPECT_EQ(table_.Renew("a", 2, seconds(10), now_).code(), Code::kStale);
  EXPECT_EQ(table_.Remove("a", 2, now_).code(), Code::kStale);
  Pass(seconds(9));
  EXPECT_TRUE(table_.Renew("a", 1, seconds(10), now_).ok());
  Pass(seconds(9));
  EXPECT_EQ(Value("a"), "x");
  EXPECT_TRUE(table_.Remove("a", 1, now_).ok());
  EXPECT_EQ(table_.Remove("a", 1, now_).code(), Code::kNotFound);
  EXPECT_EQ(table_.Renew("a", 1, seconds(10), now_).code(), Code::kNotFound);
}

TEST_F(TableTest, TheNewestOwnerReplaces) {
  EXPECT_EQ(Put("a", "old", 1), Code::kOk);
  EXPECT_EQ(Put("a", "new", 2), Code::kOk);
  EXPECT_EQ(Value("a"), "new");
  EXPECT_EQ(table_.Renew("a", 1, seconds(10), now_).code(), Code::kStale);
}

TEST_F(TableTest, IfAbsentYieldsToAnotherOwnerWhileItLives) {
  const Table::PutRequest back{
      .name = "a", .value = "back", .owner = 1, .lease = seconds(10), .if_absent = true};
  EXPECT_EQ(Put("a", "new", 2), Code::kOk);
  EXPECT_EQ(table_.Put(back, now_).code(), Code::kAlreadyExists);
  Pass(seconds(10));
  EXPECT_TRUE(table_.Put(back, now_).ok());
  EXPECT_TRUE(table_.Put(back, now_).ok());
}

TEST_F(TableTest, VersionsGrowAlsoAcrossDeaths) {
  const uint64_t first = table_.Put({.name = "a", .owner = 1}, now_).value();
  EXPECT_TRUE(table_.Remove("a", 1, now_).ok());
  EXPECT_GT(table_.Put({.name = "a", .owner = 1}, now_).value(), first);
}

TEST_F(TableTest, BoundsHoldAndWhatIsThereMayBeReplaced) {
  EXPECT_EQ(Put("a", "xxxxxxxxx"), Code::kOk);
  EXPECT_EQ(Put("b", "xxxxxxxxx"), Code::kOk);
  EXPECT_EQ(Put("c", "xxxxxxxxxx"), Code::kExhausted);
  EXPECT_EQ(Put("c", "xxxxxxxxx"), Code::kOk);
  EXPECT_EQ(table_.bytes(), 30u);
  EXPECT_EQ(Put("d", ""), Code::kExhausted);
  EXPECT_EQ(Put("c", "yyyyyyyyy"), Code::kOk);
  EXPECT_EQ(Put("c", "yyyyyyyyyy"), Code::kExhausted);
  EXPECT_EQ(Value("c"), "yyyyyyyyy");
}

TEST_F(TableTest, ListsLiveEntriesInOrder) {
  EXPECT_EQ(Put("b2", ""), Code::kOk);
  EXPECT_EQ(Put("b1", ""), Code::kOk);
  EXPECT_EQ(Put("b0", "", 1, seconds(1)), Code::kOk);
  now_ += seconds(1);
  EXPECT_THAT(table_.List("b", 10, now_), ElementsAre("b1", "b2"));
  EXPECT_THAT(table_.List("b", 1, now_), ElementsAre("b1"));
  EXPECT_THAT(table_.List("a", 10, now_), ElementsAre());
}

TEST_F(TableTest, AServerThatWasStalledExpiresNobodyForIt) {
  EXPECT_EQ(Put("a", "x"), Code::kOk);
  Pass(seconds(8));
  now_ += seconds(100);  // frozen; the first thing afterwards is a request, or a tick
  EXPECT_EQ(Value("a"), "x");
  table_.Tick(now_);
  Pass(seconds(1));
  EXPECT_EQ(Value("a"), "x");
  Pass(seconds(2));
  EXPECT_EQ(Value("a"), "not_found");
}

TEST_F(TableTest, BadArgumentsChangeNothing) {
  EXPECT_EQ(Put("", "x"), Code::kInvalidArgument);
  EXPECT_EQ(Put("a\n", "x"), Code::kInvalidArgument);
  EXPECT_EQ(Put("a", std::string(kValueBytesMax + 1, 'x')), Code::kInvalidArgument);
  EXPECT_EQ(table_.entries(), 0u);
}

}  // namespace
}  // namespace moonpool::registry
