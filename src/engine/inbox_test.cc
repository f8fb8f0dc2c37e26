#include "engine/inbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "base/thread.h"
#include "engine/task_runner.h"

namespace moonpool::engine {
namespace {

bool Readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

NotifyMessage Message(uint64_t sequence, const std::string& payload, uint64_t node = 1) {
  return {{node, 1}, sequence, {9, 9}, "sender", payload};
}

TEST(Inbox, DeliversInOrderAndSignals) {
  SystemClock clock;
  Inbox inbox(clock, 10);
  EXPECT_FALSE(Readable(inbox.event_fd()));
  ASSERT_TRUE(inbox.Deliver(Message(1, "a")).ok());
  ASSERT_TRUE(inbox.Deliver(Message(2, "b")).ok());
  EXPECT_TRUE(Readable(inbox.event_fd()));
  const auto first = inbox.TakeNotifications(1, Time{});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].payload, "a");
  EXPECT_TRUE(Readable(inbox.event_fd()));
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).at(0).payload, "b");
  EXPECT_FALSE(Readable(inbox.event_fd()));
}

TEST(Inbox, ARepeatedNotificationIsDeliveredOnce) {
  SystemClock clock;
  Inbox inbox(clock, 10);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(inbox.Deliver(Message(7, "x")).ok());
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 1u);
  EXPECT_TRUE(inbox.Deliver(Message(7, "x")).ok());  // also after it was taken
  EXPECT_TRUE(inbox.TakeNotifications(10, Time{}).empty());
  EXPECT_TRUE(inbox.Deliver(Message(7, "y", 2)).ok());  // another sender's seventh
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 1u);
}

TEST(Inbox, FullMeansAgainAndTheSameOneMayComeLater) {
  SystemClock clock;
  Inbox inbox(clock, 2);
  EXPECT_TRUE(inbox.Deliver(Message(1, "a")).ok());
  EXPECT_TRUE(inbox.Deliver(Message(2, "b")).ok());
  EXPECT_EQ(inbox.Deliver(Message(3, "c")).code(), Code::kAgain);
  EXPECT_EQ(inbox.refused(), 1u);
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 2u);
  EXPECT_TRUE(inbox.Deliver(Message(3, "c")).ok());
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 1u);
}

TEST(Inbox, ARepeatIsOkEvenWhenFullAndAfterManyLaterOnes) {
  SystemClock clock;
  Inbox inbox(clock, 2);
  ASSERT_TRUE(inbox.Deliver(Message(1, "early")).ok());
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 1u);
  for (uint64_t i = 10; i < 10 + Inbox::kRememberedPerSender - 1; ++i) {
    ASSERT_TRUE(inbox.Deliver(Message(i, "later")).ok());
    EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 1u);
  }
  // A small number that comes late is remembered like any other.
  ASSERT_TRUE(inbox.Deliver(Message(2, "late")).ok());
  ASSERT_TRUE(inbox.Deliver(Message(2, "late")).ok());
  EXPECT_EQ(inbox.TakeNotifications(10, Time{}).size(), 1u);
  ASSERT_TRUE(inbox.Deliver(Message(3, "a")).ok());
  ASSERT_TRUE(inbox.Deliver(Message(4, "b")).ok());
  EXPECT_TRUE(inbox.Deliver(Message(4, "b")).ok());
  EXPECT_EQ(inbox.Deliver(Message(5, "c")).code(), Code::kAgain);
}

TEST(Inbox, WhatItRemembersIsBounded) {
  SystemClock clock;
  Inbox inbox(clock, 1000000);
  for (uint64_t node = 1; node <= Inbox::kSendersMax + 10; ++node)
    ASSERT_TRUE(inbox.Deliver(Message(1, "x", node)).ok());
  // The oldest senders were forgotten, the youngest are known.
  EXPECT_TRUE(inbox.Deliver(Message(1, "x", Inbox::kSendersMax + 10)).ok());
  EXPECT_EQ(inbox.TakeNotifications(1000000, Time{}).size(), Inbox::kSendersMax + 10);
}

TEST(Inbox, CloseWakesAWaiter) {
  SystemClock clock;
  Inbox inbox(clock, 2);
  std::vector<Notification> got{{"not", "empty"}};
  {
    Thread waiter("waiter",
                  [&](const std::stop_token&) { got = inbox.TakeNotifications(1, kNever); });
    inbox.Close();
    waiter.Join();
  }
  EXPECT_TRUE(got.empty());
  EXPECT_EQ(inbox.Deliver(Message(1, "a")).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace moonpool::engine
