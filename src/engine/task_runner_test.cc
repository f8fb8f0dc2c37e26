#include "engine/task_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "testing/manual_clock.h"

namespace moonpool::engine {
namespace {

TEST(TaskRunner, WithoutThreadsRunsWhatIsDueInOrder) {
  testing::ManualClock clock;
  TaskRunner tasks(clock, false);
  std::string order;
  const Time start = clock.Now();
  tasks.Post(
      TaskRunner::Kind::kMayBlock, [&] { order += 'b'; }, start + std::chrono::seconds(2));
  tasks.Post(
      TaskRunner::Kind::kMayBlock, [&] { order += 'a'; }, start + std::chrono::seconds(1));
  EXPECT_FALSE(tasks.RunDue());
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(tasks.RunDue());
  EXPECT_EQ(order, "a");
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(tasks.RunDue());
  EXPECT_EQ(order, "ab");
}

TEST(TaskRunner, ABlockedTaskHoldsUpNoOther) {
  SystemClock clock;
  TaskRunner tasks(clock, true);
  std::latch release(1);
  std::latch ran(1);
  tasks.Post(TaskRunner::Kind::kMayBlock, [&] { release.wait(); });
  tasks.Post(TaskRunner::Kind::kMayBlock, [&] { ran.count_down(); });
  ran.wait();  // hangs, and so fails by its time limit, if the first held it up
  release.count_down();
}

TEST(TaskRunner, TimersAreKeptWhileEveryThreadIsBlocked) {
  SystemClock clock;
  TaskRunner tasks(clock, true);
  std::latch release(1);
  std::latch blocked(TaskRunner::kThreadsMax);
  for (size_t i = 0; i < TaskRunner::kThreadsMax; ++i) {
    tasks.Post(TaskRunner::Kind::kMayBlock, [&] {
      blocked.count_down();
      release.wait();
    });
  }
  blocked.wait();
  std::latch ran(1);
  tasks.Post(
      TaskRunner::Kind::kQuick, [&] { ran.count_down(); },
      clock.Now() + std::chrono::milliseconds(5));
  ran.wait();
  release.count_down();
}

TEST(TaskRunner, ATaskDueLaterFindsAThreadWhenTheIdleOnesHaveBecomeBusy) {
  SystemClock clock;
  TaskRunner tasks(clock, true);
  std::latch release(1);
  std::latch ran(1);
  tasks.Post(
      TaskRunner::Kind::kMayBlock, [&] { ran.count_down(); },
      clock.Now() + std::chrono::milliseconds(50));
  tasks.Post(TaskRunner::Kind::kMayBlock, [&] { release.wait(); });
  ran.wait();
  release.count_down();
}

TEST(TaskRunner, StopDropsWhatHasNotBegun) {
  SystemClock clock;
  TaskRunner tasks(clock, true);
  std::atomic<bool> ran{false};
  tasks.Post(
      TaskRunner::Kind::kMayBlock, [&] { ran = true; }, clock.Now() + std::chrono::hours(1));
  tasks.Stop();
  tasks.Post(TaskRunner::Kind::kMayBlock, [&] { ran = true; });
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace moonpool::engine
