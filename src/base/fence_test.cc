#include "base/fence.h"

#include <errno.h>
#include <pthread.h>

#include <vector>

#include "base/fence_testing.h"
#include "base/random.h"
#include "base/thread.h"

namespace moonpool {
namespace {

using namespace fence_testing;  // NOLINT(google-build-using-namespace): this test's words

Time Soon() { return BootClock::now() + std::chrono::seconds(100 * PatienceFactor()); }

std::vector<uint8_t> Pattern(size_t size) {
  std::vector<uint8_t> bytes(size);
  Random random(size);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.Next());
  return bytes;
}

TEST(Fence, CopiesEverySizeAndAlignmentBeforeTheDeadline) {
  const auto from = Pattern(3 * kFencePiece);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{100}, size_t{4096},
                            kFencePiece - 1, kFencePiece, kFencePiece + 1, 2 * kFencePiece + 77}) {
    for (const size_t shift : {0, 1, 31, 63}) {
      std::vector<uint8_t> to(size + 128, kOld);
      ASSERT_EQ(FencedCopy(to.data() + shift, from.data() + 7, size, Soon()), size);
      ASSERT_TRUE(std::equal(from.begin() + 7, from.begin() + 7 + static_cast<long>(size),
                             to.begin() + static_cast<long>(shift)));
      ASSERT_EQ(std::count(to.begin(), to.begin() + static_cast<long>(shift), kOld),
                static_cast<long>(shift));
      ASSERT_EQ(std::count(to.begin() + static_cast<long>(shift + size), to.end(), kOld),
                static_cast<long>(128 - shift));
    }
  }
}

TEST(Fence, ACopyWithoutDeadlineIsWhole) {
  const auto from = Pattern(100000);
  std::vector<uint8_t> to(from.size());
  EXPECT_EQ(FencedCopy(to.data(), from.data(), from.size(), kNever), from.size());
  EXPECT_EQ(to, from);
}

TEST(Fence, ACopyAfterTheDeadlineStoresNothing) {
  std::vector<uint8_t> to(50000, kOld);
  const std::vector<uint8_t> from(50000, kLate);
  EXPECT_EQ(FencedCopy(to.data(), from.data(), to.size(), BootClock::now()), 0u);
  EXPECT_EQ(std::count(to.begin(), to.end(), kOld), 50000);
}

TEST(Fence, ADeadlineInTheMiddleStoresWhatIsReturnedAndAtMostAPieceMore) {
  std::vector<uint8_t> to(64 << 20, kOld);
  const std::vector<uint8_t> from(to.size(), kLate);
  const size_t done = FencedCopy(to.data(), from.data(), to.size(),
                                 BootClock::now() + std::chrono::microseconds(300));
  EXPECT_LT(done, to.size());
  const auto stored = std::find(to.begin(), to.end(), kOld);
  EXPECT_GE(stored - to.begin(), static_cast<long>(done));
  EXPECT_LT(stored - to.begin(), static_cast<long>(done + kFencePiece));
  EXPECT_EQ(std::count(stored, to.end(), kOld), to.end() - stored);
}

TEST(Fence, ASystemCallGivesTheKernelsAnswer) {
  EXPECT_EQ(FencedSyscall(Soon(), SYS_getpid), getpid());
  EXPECT_EQ(FencedSyscall(kNever, SYS_getpid), getpid());
  EXPECT_EQ(FencedSyscall(Soon(), SYS_close, -1), -EBADF);
  EXPECT_EQ(FencedSyscall(kNever, SYS_close, -1), -EBADF);
}

TEST(Fence, AllSixArgumentsReachTheKernel) {
  const SharedMemory file(8192);
  const int fd = memfd_create("six", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  ASSERT_EQ(pwrite(fd, "page two", 8, 4096), 8);
  const long mapped = FencedSyscall(Soon(), SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, fd, 4096);
  ASSERT_GT(mapped, 0);
  EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(mapped), "page two", 8), 0);
  munmap(reinterpret_cast<void*>(mapped), 4096);
  close(fd);
}

TEST(Fence, ASystemCallAfterTheDeadlineIsNotMade) {
  SharedMemory memory(4096);
  memory.SetDeadline(BootClock::now());
  EXPECT_EQ(memory.Run(Call::kSyscall), -ETIME);
  EXPECT_EQ(memory.CountOf(kOld), 4096u);
}

TEST(Fence, LeavesNothingArmed) {
  port::RestartArea* area = port::ThreadRestartArea();
  if (area == nullptr) GTEST_SKIP() << WhyNotExact();
  uint64_t descriptor = 1;
  const auto look = [&] { std::memcpy(&descriptor, reinterpret_cast<char*>(area) + 8, 8); };
  char byte = 0;
  FencedCopy(&byte, "x", 1, Soon());
  look();
  EXPECT_EQ(descriptor, 0u);
  FencedSyscall(Soon(), SYS_getpid);
  look();
  EXPECT_EQ(descriptor, 0u);
  FencedCopy(&byte, "x", 1, BootClock::now());
  look();
  EXPECT_EQ(descriptor, 0u);
}

TEST(Fence, IsExactInEveryThreadWhenItIsInOne) {
  bool exact = !FenceIsExact();
  Thread("fence", [&](std::stop_token) { exact = FenceIsExact(); }).Join();
  EXPECT_EQ(exact, FenceIsExact());
}

TEST(Fence, AThreadThatIsNotRegisteredStillLooksAtTheClock) {
  if (!FenceIsExact()) GTEST_SKIP() << WhyNotExact();
  const pid_t child = fork();
  if (child == 0) {
    if (!Unregister(port::ThreadRestartArea()) || FenceIsExact()) _exit(1);
    char to = 'a';
    if (FencedCopy(&to, "b", 1, BootClock::now()) != 0 || to != 'a') _exit(2);
    if (FencedCopy(&to, "b", 1, Soon()) != 1 || to != 'b') _exit(3);
    if (FencedSyscall(BootClock::now(), SYS_getpid) != -ETIME) _exit(4);
    if (FencedSyscall(Soon(), SYS_close, -1) != -EBADF) _exit(5);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Fence, ACopyComesToItsEndInAStormOfSignals) {
  struct sigaction act {};
  struct sigaction before {};
  act.sa_handler = [](int) {};
  sigaction(SIGUSR1, &act, &before);
  const pthread_t self = pthread_self();
  std::atomic<bool> done{false};
  Thread storm("storm", [&](std::stop_token) {
    while (!done.load()) pthread_kill(self, SIGUSR1);
  });
  const auto from = Pattern(1 << 20);
  std::vector<uint8_t> to(from.size());
  const size_t copied = FencedCopy(to.data(), from.data(), from.size(), Soon());
  done = true;
  storm.Join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(copied, from.size());
  EXPECT_EQ(to, from);
}

// A child that copies again and again until its deadline and then stops itself; the test freezes it
// at a random instant, lets the deadline pass, refills the memory and thaws it.
class FreezingTest : public testing::Test {
 protected:
  void Start(Kernel kernel) {
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      PrepareChild(kernel);
      while (true) {
        raise(SIGSTOP);
        memory_.SetDeadline(BootClock::now() + Duration(memory_.head().allowed.load()));
        memory_.head().done = 2;  // copying
        while (memory_.Run(Call::kCopy) == static_cast<int64_t>(memory_.size())) continue;
        memory_.head().done = 1;
      }
    }
    AwaitStop();
  }
  void TearDown() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  void AwaitStop() {
    int status = 0;
    ASSERT_EQ(waitpid(child_, &status, WUNTRACED), child_);
    ASSERT_TRUE(WIFSTOPPED(status)) << status;
  }

  // False: the child was not frozen in mid-copy. Else `*late`: how many bytes it stored late.
  bool Round(size_t* late) {
    memory_.head().done = 0;
    memory_.head().allowed = allowed_.count();
    kill(child_, SIGCONT);
    // A child that was stopped after its copy and before its own stop stops once more.
    int status = 0;
    while (memory_.head().done == 0) {
      if (waitpid(child_, &status, WUNTRACED | WNOHANG) == child_) kill(child_, SIGCONT);
      sched_yield();
    }
    const Time stop =
        BootClock::now() + Duration(random_.Below(static_cast<uint64_t>(allowed_.count() * 3 / 4)));
    while (BootClock::now() < stop && memory_.head().done == 2) continue;
    kill(child_, SIGSTOP);
    AwaitStop();
    const bool frozen = memory_.head().done == 2;
    WaitUntil(memory_.deadline() + std::chrono::microseconds(1));
    memory_.Fill(kNew);
    // A child that was done before it was frozen gets more time in the next round, so that a busy
    // machine comes to its frozen rounds too.
    allowed_ = frozen ? std::max(allowed_ / 2, kAllowedMin) : std::min(allowed_ * 2, kAllowedMax);
    if (!frozen) return false;
    kill(child_, SIGCONT);
    AwaitStop();
    *late = memory_.size() - memory_.CountOf(kNew);
    return true;
  }

  static constexpr Duration kAllowedMin = std::chrono::milliseconds(2);
  static constexpr Duration kAllowedMax = std::chrono::seconds(2);

  SharedMemory memory_{256 * 1024};
  Duration allowed_ = kAllowedMin;
  const Time enough_ = BootClock::now() + std::chrono::seconds(2);
  Random random_{20240229};
  pid_t child_ = -1;
};

TEST_F(FreezingTest, NotOneByteIsStoredAfterAFreezeBeyondTheDeadline) {
  if (!FenceIsExact()) GTEST_SKIP() << WhyNotExact();
  ASSERT_NO_FATAL_FAILURE(Start(Kernel::kHelps));
  int frozen = 0;
  while (frozen == 0 || (frozen < 200 && BootClock::now() < enough_)) {
    size_t late = 0;
    if (!Round(&late)) continue;
    ++frozen;
    ASSERT_EQ(late, 0u) << "frozen for the " << frozen << "th time";
  }
}

TEST_F(FreezingTest, WithoutTheKernelsHelpBytesAreStoredLate) {
  if (!FenceIsExact()) GTEST_SKIP() << WhyNotExact();
  ASSERT_NO_FATAL_FAILURE(Start(Kernel::kForged));
  size_t late = 0;
  int frozen = 0;
  while (late == 0 && frozen < 500) frozen += Round(&late) ? 1 : 0;
  EXPECT_GT(late, 0u) << "the freezing test cannot fail";
}

}  // namespace
}  // namespace moonpool
