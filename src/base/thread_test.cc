#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <string>

namespace moonpool {
namespace {

TEST(Thread, HasItsNameCutToFifteenCharacters) {
  std::string name(16, '\0');
  Thread("a-name-that-is-too-long", [&](std::stop_token) {
    pthread_getname_np(pthread_self(), name.data(), name.size());
  }).Join();
  EXPECT_STREQ(name.c_str(), "a-name-that-is-");
}

TEST(Thread, SignalsAreBlockedInItAndNotInItsMaker) {
  sigset_t inside;
  sigset_t outside;
  Thread("signals", [&](std::stop_token) {
    pthread_sigmask(SIG_SETMASK, nullptr, &inside);
  }).Join();
  pthread_sigmask(SIG_SETMASK, nullptr, &outside);
  EXPECT_EQ(sigismember(&inside, SIGTERM), 1);
  EXPECT_EQ(sigismember(&outside, SIGTERM), 0);
}

TEST(Thread, TheDestructorAsksToStopAndWaits) {
  std::atomic<bool> stopped{false};
  {
    const Thread thread("stopper", [&](std::stop_token stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      stopped = true;
    });
  }
  EXPECT_TRUE(stopped);
}

TEST(Thread, JoiningTwiceOrNothingIsHarmless) {
  Thread none;
  none.Join();
  EXPECT_FALSE(none.joinable());
  Thread thread("twice", [](std::stop_token) {});
  EXPECT_TRUE(thread.joinable());
  thread.Join();
  thread.Join();
  EXPECT_FALSE(thread.joinable());
}

}  // namespace
}  // namespace moonpool
