#include "testing/child_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/str.h"
#include "testing/patience.h"
#include "testing/shared_memory.h"

namespace moonpool::testing {
namespace {

using std::chrono::milliseconds;

MOONPOOL_CHILD(Echo, channel) {
  while (auto message = channel.Receive()) {
    if (message->text == "exit 7") ::_exit(7);
    channel.Send(message->text);
  }
}

MOONPOOL_CHILD(WriteShared, channel) {
  auto message = channel.Receive();
  ASSERT_TRUE(message);
  SharedMemory memory(std::move(message->fd), 4096);
  memory.data()[100] = std::byte{42};
  channel.Send("done");
}

MOONPOOL_CHILD(Fails, channel) { FAIL() << "as the test wants"; }

char StateOf(pid_t pid) {
  std::ifstream file(Str("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  return line[line.rfind(')') + 2];
}

TEST(ChildProcess, RunsItsBodyInAnotherProcess) {
  ChildProcess child("Echo");
  EXPECT_NE(child.pid(), ::getpid());
  ASSERT_TRUE(child.channel().Send("hello"));
  auto answer = child.channel().Receive(Patience());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->text, "hello");
}

TEST(ChildProcess, FrozenChildStandsStillUntilThawed) {
  ChildProcess child("Echo");
  ASSERT_TRUE(child.channel().Send("up"));
  ASSERT_TRUE(child.channel().Receive(Patience()));
  child.Freeze();
  EXPECT_EQ(StateOf(child.pid()), 'T');
  ASSERT_TRUE(child.channel().Send("later"));
  EXPECT_FALSE(child.channel().Receive(milliseconds(50)));
  child.Thaw();
  EXPECT_TRUE(child.channel().Receive(Patience()));
}

TEST(ChildProcess, KilledChildIsGoneAndItsChannelEnds) {
  ChildProcess child("Echo");
  child.Kill();
  EXPECT_FALSE(child.running());
  EXPECT_FALSE(child.channel().Receive(Patience()));
}

TEST(ChildProcess, FrozenChildCanBeKilled) {
  ChildProcess child("Echo");
  child.Freeze();
  child.Kill();
  EXPECT_FALSE(child.running());
}

TEST(ChildProcess, WaitTellsTheExitCodeOrThatItStillRuns) {
  ChildProcess child("Echo");
  EXPECT_FALSE(child.Wait(milliseconds(0)));
  ASSERT_TRUE(child.channel().Send("exit 7"));
  const auto status = child.Wait(Patience());
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 7);
}

TEST(ChildProcess, FailedAssertionInTheChildIsItsExitCode) {
  ChildProcess child("Fails");
  const auto status = child.Wait(Patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(WEXITSTATUS(*status), 1);
}

TEST(ChildProcess, UnknownNameRunsNothing) {
  ChildProcess child("NoSuchChild");
  const auto status = child.Wait(Patience());
  ASSERT_TRUE(status);
  EXPECT_EQ(WEXITSTATUS(*status), 0);
  EXPECT_FALSE(child.channel().Receive(Patience()));
}

TEST(ChildProcess, SharedMemoryIsSeenByBoth) {
  SharedMemory memory(4096);
  ChildProcess child("WriteShared");
  ASSERT_TRUE(child.channel().Send("memory", memory.fd()));
  ASSERT_TRUE(child.channel().Receive(Patience()));
  EXPECT_EQ(memory.data()[100], std::byte{42});
}

}  // namespace
}  // namespace moonpool::testing
