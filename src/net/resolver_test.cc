#include "net/resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "net/test_support.h"

namespace moonpool::net {
namespace {

using ::testing::HasSubstr;
using testing::RealClock;
using testing::Soon;

Result<std::vector<Endpoint>> Loopback(const std::string&) {
  return std::vector<Endpoint>{*NumericEndpoint("127.0.0.1", 0)};
}

// A look-up that is stuck until Release. Shared with the threads that are inside.
struct Stuck {
  std::promise<void> gate;
  std::shared_future<void> open = gate.get_future().share();
  std::atomic<int> entered{0};

  Resolver::Lookup lookup(std::shared_ptr<Stuck> self) {
    return [self](const std::string& host) {
      ++self->entered;
      self->open.wait();
      return Loopback(host);
    };
  }
};

TEST(ResolverTest, NumericHostsNeedNoLookup) {
  Resolver resolver(RealClock(), [](const std::string&) -> Result<std::vector<Endpoint>> {
    return Status(Code::kInternal, "looked up");
  });
  const auto found = resolver.Resolve({"::1", 80}, Time{});  // a deadline long past
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->front().ToString(), "[::1]:80");
}

TEST(ResolverTest, NamesGetThePort) {
  Resolver resolver(RealClock(), Loopback);
  const auto found = resolver.Resolve({"node7", 80}, Soon());
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->front().ToString(), "127.0.0.1:80");
}

TEST(ResolverTest, LocalhostIsFoundByTheSystem) {
  Resolver resolver(RealClock());
  const auto found = resolver.Resolve({"localhost", 80}, Soon());
  if (!found.ok()) GTEST_SKIP() << "no localhost here: " << found.status().ToString();
  EXPECT_EQ(found->front().port(), 80);
}

TEST(ResolverTest, FailureNamesTheHost) {
  Resolver resolver(RealClock(), [](const std::string&) -> Result<std::vector<Endpoint>> {
    return Status(Code::kUnavailable, "no such name");
  });
  const auto found = resolver.Resolve({"node7", 80}, Soon());
  EXPECT_EQ(found.code(), Code::kUnavailable);
  EXPECT_EQ(found.status().message(), "resolve 'node7': no such name");
}

TEST(ResolverTest, AStuckLookupEndsAtTheDeadlineAndIsShared) {
  const auto stuck = std::make_shared<Stuck>();
  Resolver resolver(RealClock(), stuck->lookup(stuck), testing::Patience());
  for (int i = 0; i < 3; ++i) {
    const auto found =
        resolver.Resolve({"node7", 80}, After(BootClock::now(), std::chrono::milliseconds(5)));
    EXPECT_EQ(found.code(), Code::kTimedOut);
  }
  EXPECT_TRUE(testing::Eventually([&] { return stuck->entered == 1; }));
  stuck->gate.set_value();
  EXPECT_TRUE(resolver.Resolve({"node7", 80}, Soon()).ok());
  EXPECT_LE(stuck->entered, 2);  // the last call shared the first look-up or made its own
}

TEST(ResolverTest, StuckLookupsAreBounded) {
  const auto stuck = std::make_shared<Stuck>();
  Resolver resolver(RealClock(), stuck->lookup(stuck), testing::Patience());
  for (size_t i = 0; i < Resolver::kLookupsMax; ++i) {
    EXPECT_EQ(resolver.Resolve({"node" + std::to_string(i), 80}, Time{}).code(), Code::kTimedOut);
  }
  EXPECT_EQ(resolver.Resolve({"another", 80}, Soon()).code(), Code::kExhausted);
  stuck->gate.set_value();
  EXPECT_TRUE(testing::Eventually([&] { return resolver.Resolve({"another", 80}, Soon()).ok(); }));
}

TEST(ResolverTest, CancelWakesWaitingCalls) {
  const auto stuck = std::make_shared<Stuck>();
  Resolver resolver(RealClock(), stuck->lookup(stuck), testing::Patience());
  auto call = std::async(std::launch::async, [&] {
    return resolver.Resolve({"node7", 80}, kNever);
  });
  EXPECT_TRUE(testing::Eventually([&] { return stuck->entered == 1; }));
  resolver.Cancel();
  EXPECT_EQ(call.get().code(), Code::kCancelled);
  EXPECT_EQ(resolver.Resolve({"node8", 80}, Soon()).code(), Code::kCancelled);
  stuck->gate.set_value();
}

TEST(ResolverTest, DestructionDoesNotWaitForAStuckLookup) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // In a process of its own, since the look-up's thread is abandoned there.
  EXPECT_EXIT(
      {
        const auto stuck = std::make_shared<Stuck>();
        {
          Resolver resolver(RealClock(), stuck->lookup(stuck));
          (void)resolver.Resolve({"node7", 80}, Time{}).ok();
        }
        _exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace moonpool::net
