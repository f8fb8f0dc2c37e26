// Holds a process at each single instruction of a fenced call until its deadline has passed, puts
// other bytes where the call was to store, and lets it go.
//
// The instructions are found by single-stepping through one call in a child whose restartable
// sequences the kernel does not know (with them a stepped call would begin again at every step).
// Then one child for each instruction runs at full speed into a breakpoint there. x86-64 only.

#include <errno.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#include <memory>
#include <set>
#include <vector>

#include "base/fence_testing.h"
#include "base/str.h"

namespace moonpool {
namespace {

using namespace fence_testing;  // NOLINT(google-build-using-namespace): this test's words

constexpr size_t kSize = 256;
constexpr size_t kAtOnce = 64;  // children held together
constexpr int kNotPermitted = 77;
constexpr size_t kStepsMax = 2000000;
constexpr long kLowByte = 0xff;
constexpr long kBreakpoint = 0xcc;

class Traced {
 public:
  Traced(Call call, Kernel kernel) {
    child_ = fork();
    if (child_ != 0) {
      waitpid(child_, &status_, 0);
      return;
    }
    PrepareChild(kernel);
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotPermitted);
    raise(SIGSTOP);
    memory_.head().result = memory_.Run(call);
    memory_.head().done = 1;
    _exit(0);
  }
  ~Traced() {
    if (WIFSTOPPED(status_)) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

  bool stopped() const { return WIFSTOPPED(status_); }
  bool finished() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }
  bool not_permitted() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == kNotPermitted; }
  SharedMemory& memory() { return memory_; }

  void Continue() {
    ptrace(PTRACE_CONT, child_, nullptr, nullptr);
    waitpid(child_, &status_, 0);
  }
  void Step() {
    ptrace(PTRACE_SINGLESTEP, child_, nullptr, nullptr);
    waitpid(child_, &status_, 0);
  }
  user_regs_struct Registers() {
    user_regs_struct regs{};
    ptrace(PTRACE_GETREGS, child_, nullptr, &regs);
    return regs;
  }
  long Word(uintptr_t address) {
    return ptrace(PTRACE_PEEKTEXT, child_, reinterpret_cast<void*>(address), nullptr);
  }

  // Runs until the instruction at `ip` is next. False: the child finished without coming by.
  bool RunTo(uintptr_t ip) {
    const long word = Word(ip);
    Poke(ip, (word & ~kLowByte) | kBreakpoint);
    Continue();
    if (!stopped()) return false;
    Poke(ip, word);
    user_regs_struct regs = Registers();
    EXPECT_EQ(WSTOPSIG(status_), SIGTRAP);
    EXPECT_EQ(regs.rip, ip + 1);
    regs.rip = ip;
    ptrace(PTRACE_SETREGS, child_, nullptr, &regs);
    return true;
  }

 private:
  void Poke(uintptr_t address, long word) {
    ptrace(PTRACE_POKETEXT, child_, reinterpret_cast<void*>(address),
           reinterpret_cast<void*>(word));
  }

  SharedMemory memory_{kSize};
  pid_t child_ = -1;
  int status_ = 0;
};

class HoldTest : public testing::TestWithParam<Call> {
 protected:
  void SetUp() override {
    if (!FenceIsExact()) GTEST_SKIP() << WhyNotExact();
    // Once before, so that whatever is found out at the first call (symbols) is known in children.
    SharedMemory warm(kSize);
    warm.SetDeadline(BootClock::now());
    warm.Run(GetParam());
    warm.SetDeadline(kNever - std::chrono::hours(1));
    warm.Run(GetParam());
    Traced probe(GetParam(), Kernel::kForged);
    if (probe.not_permitted()) GTEST_SKIP() << "ptrace is not permitted here";
    ASSERT_TRUE(probe.stopped());
    range_ = port::RestartableRange(GetParam() == Call::kCopy ? port::Restartable::kCopy
                                                              : port::Restartable::kSyscall);
    Record(probe);
  }

  // Every instruction from the entry of the fenced function to its return, in the order of their
  // first execution.
  void Record(Traced& child) {
    child.memory().SetDeadline(kNever - std::chrono::hours(1));
    const auto entry = GetParam() == Call::kCopy ? reinterpret_cast<uintptr_t>(&FencedCopy)
                                                 : reinterpret_cast<uintptr_t>(&FencedSyscall);
    ASSERT_TRUE(child.RunTo(entry));
    const user_regs_struct at_entry = child.Registers();
    const auto back = static_cast<uintptr_t>(child.Word(at_entry.rsp));
    std::set<uintptr_t> seen;
    for (size_t steps = 0; child.stopped(); ++steps) {
      ASSERT_LT(steps, kStepsMax);
      const user_regs_struct regs = child.Registers();
      if (regs.rip == back && regs.rsp > at_entry.rsp) break;
      if (seen.insert(regs.rip).second) path_.push_back(regs.rip);
      child.Step();
    }
    ASSERT_TRUE(child.stopped());
    ASSERT_EQ(child.memory().CountOf(kLate), kSize) << "the recorded call did its work";
    for (const uintptr_t ip : path_) inside_ += Inside(ip) ? 1 : 0;
    ASSERT_EQ(inside_, 3u) << "look, jump, work";
  }

  bool Inside(uintptr_t ip) const { return ip >= range_.begin && ip < range_.end; }

  // The outcome of holding a child at one instruction; `missed` when it was late before it got
  // there (a busy machine); `elsewhere` when its call succeeded without coming by (a sanitizer's
  // run-time does not take the same way each time).
  struct Outcome {
    bool missed = true;
    bool elsewhere = false;
    size_t late_bytes = 0;
    int64_t result = 0;
  };

  std::vector<Outcome> HoldAt(const std::vector<uintptr_t>& ips, Kernel kernel) {
    std::vector<Outcome> outcomes(ips.size());
    Duration patience = std::chrono::milliseconds(50);
    for (int attempt = 0; attempt < 8; ++attempt, patience *= 2) {
      for (size_t from = 0; from < ips.size(); from += kAtOnce) {
        const size_t to = std::min(from + kAtOnce, ips.size());
        HoldSome(ips, {from, to, kernel, patience}, outcomes);
      }
    }
    return outcomes;
  }

  struct Some {
    size_t from;
    size_t to;
    Kernel kernel;
    Duration patience;
  };
  void HoldSome(const std::vector<uintptr_t>& ips, const Some& some,
                std::vector<Outcome>& outcomes) {
    std::vector<std::pair<size_t, std::unique_ptr<Traced>>> held;
    Time last = BootClock::now();
    for (size_t i = some.from; i < some.to; ++i) {
      if (!outcomes[i].missed) continue;
      auto child = std::make_unique<Traced>(GetParam(), some.kernel);
      last = BootClock::now() + some.patience;
      child->memory().SetDeadline(last);
      // What is executed after the call does not count.
      const bool came_by = child->RunTo(ips[i]) && child->memory().head().done == 0;
      if (came_by && BootClock::now() < last) {
        held.emplace_back(i, std::move(child));
      } else if (!came_by && child->memory().head().result == static_cast<int64_t>(kSize)) {
        outcomes[i].missed = false;
        outcomes[i].elsewhere = true;
      }
    }
    if (held.empty()) return;
    WaitUntil(last + std::chrono::milliseconds(1));
    for (auto& [i, child] : held) {
      child->memory().Fill(kNew);
      child->Continue();
      EXPECT_TRUE(child->finished()) << "held at instruction " << i;
      outcomes[i] = {false, false, kSize - child->memory().CountOf(kNew),
                     child->memory().head().result};
    }
  }

  std::string Name(size_t i) const {
    return Str("instruction ", i, " of ", path_.size(), Inside(path_[i]) ? ", inside" : "");
  }

  port::CodeRange range_{0, 0};
  std::vector<uintptr_t> path_;
  size_t inside_ = 0;
};

TEST_P(HoldTest, NothingIsStoredLateWhereverTheProcessWasHeld) {
  const auto outcomes = HoldAt(path_, Kernel::kHelps);
  const int64_t refused = GetParam() == Call::kCopy ? 0 : -ETIME;
  bool behind = false;  // the work was done before the process was held
  for (size_t i = 0; i < path_.size(); ++i) {
    EXPECT_EQ(outcomes[i].late_bytes, 0u) << Name(i);
    EXPECT_FALSE(outcomes[i].missed) << Name(i);
    if (outcomes[i].elsewhere) {
      EXPECT_FALSE(Inside(path_[i])) << Name(i);
    } else {
      EXPECT_EQ(outcomes[i].result, behind ? static_cast<int64_t>(kSize) : refused) << Name(i);
    }
    if (i + 1 < path_.size()) behind = behind || (Inside(path_[i]) && !Inside(path_[i + 1]));
  }
}

TEST_P(HoldTest, WithoutTheKernelsHelpEachInstructionInsideLetsALateStoreThrough) {
  std::vector<uintptr_t> inside;
  for (const uintptr_t ip : path_) {
    if (Inside(ip)) inside.push_back(ip);
  }
  for (const Outcome& outcome : HoldAt(inside, Kernel::kForged)) {
    EXPECT_FALSE(outcome.missed);
    EXPECT_FALSE(outcome.elsewhere);
    EXPECT_EQ(outcome.late_bytes, kSize) << "the test above cannot fail";
  }
}

INSTANTIATE_TEST_SUITE_P(Fence, HoldTest, testing::Values(Call::kCopy, Call::kSyscall),
                         [](const auto& param) {
                           return param.param == Call::kCopy ? "Copy" : "Syscall";
                         });

}  // namespace
}  // namespace moonpool
