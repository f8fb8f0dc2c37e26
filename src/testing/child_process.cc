#include "testing/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/port/sanitizer.h"
#include "base/str.h"

namespace moonpool::testing {
namespace {

constexpr int kChannelFd = 3;
constexpr std::string_view kNameVariable = "MOONPOOL_TEST_CHILD";
constexpr std::string_view kParentVariable = "MOONPOOL_TEST_PARENT";

// Runs the child's body as a test, so that GoogleTest's assertions work in it.
class ChildTest : public ::testing::Test {
 public:
  explicit ChildTest(ChildBody body) : body_(std::move(body)) {}
  void TestBody() override {
    Channel channel{ChannelFd()};
    body_(channel);
  }

 private:
  // The thread sanitizer lets what arrives at a socket come after what this process had sent through others, as an
  // answer of the parent does; but only at sockets that this process has made.
  static UniqueFd ChannelFd() {
    if constexpr (!kThreadSanitizer) return UniqueFd(kChannelFd);
    UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    MOONPOOL_CHECK(::syscall(SYS_dup3, kChannelFd, made.get(), O_CLOEXEC) == made.get());
    ::close(kChannelFd);
    return made;
  }

  ChildBody body_;
};

// This process's environment without GoogleTest's settings, which are meant for the parent.
std::vector<std::string> ChildEnvironment(std::string_view name) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("GTEST_") || text.starts_with("TEST_") ||
        text.starts_with(kNameVariable)) {
      continue;
    }
    all.emplace_back(text);
  }
  all.push_back(Str(kNameVariable, "=", name));
  all.push_back(Str(kParentVariable, "=", ::getpid()));
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

pid_t Spawn(std::string_view name, int channel_fd) {
  std::array<char, 4096> self{};
  MOONPOOL_CHECK(::readlink("/proc/self/exe", self.data(), self.size() - 1) > 0);
  std::vector<std::string> arguments = {self.data(), "--gtest_filter=MoonpoolChild.*",
                                        "--gtest_brief=1"};
  std::vector<std::string> environment = ChildEnvironment(name);
  std::vector<char*> argv = Pointers(arguments);
  std::vector<char*> envp = Pointers(environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, channel_fd, kChannelFd);
  // GoogleTest's report of the child's only test would look like the parent's own.
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, self.data(), &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  MOONPOOL_CHECK(error == 0);
  return pid;
}

// Prints a child's failed assertions to standard error, as standard output goes nowhere.
class FailurePrinter : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const std::string text =
        Str("in child ", ::getpid(), ": ", result.file_name() ? result.file_name() : "?", ":",
            result.line_number(), ": ", result.message(), "\n");
    (void)!::write(STDERR_FILENO, text.data(), text.size());
  }
};

}  // namespace

bool Channel::Send(std::string_view text, int fd) {
  MOONPOOL_CHECK(!text.empty());
  MOONPOOL_CHECK(text.size() <= kMessageMax);
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size());
}

std::optional<Channel::Message> Channel::Receive(Duration timeout) {
  if (timeout != Duration::max()) {
    pollfd wait{fd_.get(), POLLIN, 0};
    const Time now = BootClock::now();
    if (::poll(&wait, 1, MillisUntil(now, After(now, timeout), 1 << 30)) <= 0) return std::nullopt;
  }
  Message out;
  out.text.resize(kMessageMax);
  iovec part{out.text.data(), out.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  // Room for one descriptor and no more: CMSG_SPACE pads to where the kernel would put a second one, which nobody
  // would close.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  out.text.resize(static_cast<size_t>(got));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    out.fd.Reset(fd);
  }
  return out;
}

struct Ends {
  UniqueFd ours;
  UniqueFd theirs;
  static Ends Make() {
    std::array<int, 2> pair{};
    MOONPOOL_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0);
    return {UniqueFd(pair[0]), UniqueFd(pair[1])};
  }
};

ChildProcess::ChildProcess(std::string_view name) : ChildProcess(Ends::Make(), name) {}

ChildProcess::ChildProcess(Ends ends, std::string_view name)
    : channel_(std::move(ends.ours)), pid_(Spawn(name, ends.theirs.get())) {}

ChildProcess::~ChildProcess() { Kill(); }

void ChildProcess::Freeze() {
  if (status_) return;
  ::kill(pid_, SIGSTOP);
  int status = 0;
  // The kernel reports a stop when the last thread of the process has stopped.
  if (::waitpid(pid_, &status, WUNTRACED) == pid_ && !WIFSTOPPED(status)) status_ = status;
}

void ChildProcess::Thaw() {
  if (status_) return;
  ::kill(pid_, SIGCONT);
  int status = 0;
  if (::waitpid(pid_, &status, WCONTINUED) == pid_ && !WIFCONTINUED(status)) status_ = status;
}

void ChildProcess::Kill() {
  if (status_) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = status;
}

std::optional<int> ChildProcess::Wait(Duration timeout) {
  if (status_) return status_;
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  MOONPOOL_CHECK(pidfd.valid());
  pollfd wait{pidfd.get(), POLLIN, 0};
  const Time now = BootClock::now();
  if (::poll(&wait, 1, MillisUntil(now, After(now, timeout), 1 << 30)) <= 0) return std::nullopt;
  int status = 0;
  if (::waitpid(pid_, &status, 0) == pid_) status_ = status;
  return status_;
}

bool RegisterChild(const std::string& name, const ChildBody& body) {
  const char* wanted = std::getenv(std::string(kNameVariable).c_str());
  if (wanted == nullptr || std::string_view(wanted) != name) return true;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* parent = std::getenv(std::string(kParentVariable).c_str());
  // The parent may have died before the line above.
  if (parent == nullptr || std::atoi(parent) != ::getppid()) ::_exit(1);
  ::testing::UnitTest::GetInstance()->listeners().Append(
      std::make_unique<FailurePrinter>().release());
  ::testing::RegisterTest(
      "MoonpoolChild", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
      [body]() -> ChildTest* { return std::make_unique<ChildTest>(body).release(); });
  return true;
}

}  // namespace moonpool::testing
