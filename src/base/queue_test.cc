#include "base/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/thread.h"

namespace moonpool {
namespace {

class HandClock final : public Clock {
 public:
  Time Now() const override { return Time(Duration(now_.load())); }
  void Set(Time now) { now_ = now.time_since_epoch().count(); }

 private:
  std::atomic<int64_t> now_{0};
};

TEST(BoundedQueue, GivesValuesInTheOrderInWhichTheyCame) {
  BoundedQueue<int> queue(3);
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(queue.TryPush(i));
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(queue.TryPop(), i);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueue, RefusesWhenFullAndLeavesTheValueAlone) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1);
  auto second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.TryPush(std::move(first)));
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.TryPop(), 1);
  EXPECT_TRUE(queue.TryPush(std::move(second)));
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueue, PopReturnsNothingOnceTheDeadlineHasPassed) {
  HandClock clock;
  BoundedQueue<int> queue(1);
  const Time deadline(Duration(1000));
  std::atomic<bool> returned{false};
  Thread popper("popper", [&](std::stop_token) {
    EXPECT_EQ(queue.Pop(deadline, clock), std::nullopt);
    returned = true;
  });
  clock.Set(deadline - Duration(1));
  EXPECT_FALSE(returned);
  clock.Set(deadline);
  popper.Join();
  EXPECT_TRUE(queue.TryPush(5));
  EXPECT_EQ(queue.Pop(deadline, clock), 5) << "what is there is given whatever the time";
}

TEST(BoundedQueue, CloseWakesTheWaitersAndKeepsWhatIsInside) {
  SystemClock clock;
  BoundedQueue<int> queue(4);
  std::vector<Thread> waiters;
  std::atomic<int> empty{0};
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back("waiter", [&](std::stop_token) {
      if (!queue.Pop(kNever, clock)) ++empty;
    });
  }
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  queue.Close();
  for (Thread& waiter : waiters) waiter.Join();
  EXPECT_EQ(empty, 2);
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.TryPush(2));
}

TEST(BoundedQueue, EachValueReachesOneOfManyConsumers) {
  SystemClock clock;
  BoundedQueue<int> queue(8);
  constexpr int kValues = 20000;
  std::vector<std::atomic<int>> seen(kValues);
  std::vector<Thread> consumers;
  for (int i = 0; i < 2; ++i) {
    consumers.emplace_back("consumer", [&](std::stop_token) {
      while (const auto value = queue.Pop(kNever, clock)) ++seen[static_cast<size_t>(*value)];
    });
  }
  for (int i = 0; i < kValues;) {
    if (queue.TryPush(i)) {
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  queue.Close();
  consumers.clear();
  for (const auto& count : seen) ASSERT_EQ(count, 1);
}

}  // namespace
}  // namespace moonpool
