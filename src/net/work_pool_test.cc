#include "net/work_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "net/test_support.h"

namespace moonpool::net {
namespace {

using testing::Patience;

TEST(WorkPoolTest, RunsJobsOnItsThreads) {
  WorkPool pool({.thread_name = "test-work", .threads = 2});
  std::promise<std::string> name;
  ASSERT_TRUE(pool.Submit([&] {
    char text[16] = {};
    pthread_getname_np(pthread_self(), text, sizeof(text));
    name.set_value(text);
  }));
  EXPECT_EQ(name.get_future().get(), "test-work");
}

// One worker that is busy until `gate` is set.
struct Blocked {
  explicit Blocked(WorkPool& pool) {
    EXPECT_TRUE(pool.Submit([this] {
      running.set_value();
      gate.get_future().wait();
    }));
    running.get_future().wait();
  }
  std::promise<void> running;
  std::promise<void> gate;
};

TEST(WorkPoolTest, AFullQueueRefuses) {
  WorkPool pool({.thread_name = "test-work", .threads = 1, .queue_max = 2});
  Blocked blocked(pool);
  EXPECT_TRUE(pool.Submit([] {}));
  EXPECT_TRUE(pool.Submit([] {}));
  EXPECT_FALSE(pool.Submit([] {}));
  blocked.gate.set_value();
  EXPECT_TRUE(testing::Eventually([&] { return pool.Submit([] {}); }));
}

TEST(WorkPoolTest, CloseDropsWaitingJobsAndReportsRunningOnes) {
  std::atomic<bool> ran = false;
  WorkPool pool({.thread_name = "test-work", .threads = 1});
  Blocked blocked(pool);
  EXPECT_TRUE(pool.Submit([&] { ran = true; }));
  EXPECT_FALSE(pool.Close(Duration(0)));
  EXPECT_FALSE(pool.Submit([] {}));
  blocked.gate.set_value();
  EXPECT_TRUE(pool.Close(Patience()));
  EXPECT_TRUE(pool.Close(Patience()));
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace moonpool::net
