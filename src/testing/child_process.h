#pragma once

// A second process for a test: the test's own program started afresh (so that threads and
// sanitizers are in order), running a named body that talks with the test through a Channel.
//
//   MOONPOOL_CHILD(Echo, channel) {
//     while (auto message = channel.Receive()) channel.Send(message->text);
//   }
//   TEST(Foo, TalksToAnotherProcess) {
//     ChildProcess child("Echo");
//     child.channel().Send("hello");
//     EXPECT_EQ(child.channel().Receive()->text, "hello");
//   }
//
// How: the child is exec'ed with the name in its environment; MOONPOOL_CHILD registers its body as
// the one GoogleTest test of that process, and nothing anywhere else. A child dies with the thread
// that made it (PR_SET_PDEATHSIG), and when its ChildProcess is destroyed.
//
// Threads: thread-bound. Signals reach the child only through this class.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"

namespace moonpool::testing {

// One end of a connection that keeps messages whole (SOCK_SEQPACKET) and can carry a descriptor.
class Channel {
 public:
  static constexpr size_t kMessageMax = size_t{64} * 1024;
  struct Message {
    std::string text;
    UniqueFd fd;  // invalid unless one was sent
  };

  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}

  // False when the other end is gone. Requires: text has 1 .. kMessageMax bytes.
  bool Send(std::string_view text, int fd = -1);
  // Nothing when the other end is gone, or (with a timeout) when none came in time.
  std::optional<Message> Receive(Duration timeout = Duration::max());
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class ChildProcess {
 public:
  explicit ChildProcess(std::string_view name);
  ~ChildProcess();  // kills and reaps what still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }
  bool running() const { return !status_.has_value(); }

  // SIGSTOP; returns when every thread of the child stands still.
  void Freeze();
  // SIGCONT; returns when it runs again.
  void Thaw();
  // SIGKILL; returns when it is gone.
  void Kill();
  // The status of waitpid(2), or nothing when it still runs after `timeout`.
  std::optional<int> Wait(Duration timeout);

 private:
  explicit ChildProcess(struct Ends ends, std::string_view name);
  Channel channel_;
  pid_t pid_ = -1;
  std::optional<int> status_;  // once reaped
};

using ChildBody = std::function<void(Channel& channel)>;
// What MOONPOOL_CHILD calls. Returns true so that a constant can be initialised with it.
bool RegisterChild(const std::string& name, const ChildBody& body);

}  // namespace moonpool::testing

#define MOONPOOL_CHILD(name, channel)                                     \
  static void MoonpoolChild##name(::moonpool::testing::Channel& channel); \
  [[maybe_unused]] static const bool moonpool_child_registered_##name =   \
      ::moonpool::testing::RegisterChild(#name, MoonpoolChild##name);     \
  static void MoonpoolChild##name([[maybe_unused]] ::moonpool::testing::Channel& channel)
