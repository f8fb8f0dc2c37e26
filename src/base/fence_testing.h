#pragma once

// Vocabulary of the fence's tests: a forked child that makes one fenced call after another in
// memory that it shares with the test, and can be frozen. Test only.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/fence.h"
#include "base/port/restartable.h"

namespace moonpool::fence_testing {

inline constexpr uint8_t kOld = 0x11;   // what the owner of the memory had there
inline constexpr uint8_t kLate = 0x22;  // what the fenced call stores
inline constexpr uint8_t kNew = 0x33;   // what the owner puts there after the deadline

enum class Call { kCopy, kSyscall };
// kForged: the kernel does not know of the thread's restartable sequences (any more), but the code
// believes that it does. It shows what happens without the kernel's help: the control of the tests.
enum class Kernel { kHelps, kForged };

inline int64_t PatienceFactor() {
  const char* text = std::getenv("MOONPOOL_PATIENCE");
  return text == nullptr ? 1 : std::max<int64_t>(1, std::atoll(text));
}

// Waits for time to pass: the subject of these tests is time.
inline void WaitUntil(Time when) {
  while (true) {
    const int ms = MillisUntil(BootClock::now(), when, 1000);
    if (ms == 0) return;
    timespec rest{.tv_sec = 0, .tv_nsec = std::min(ms, 999) * 1000000L};
    nanosleep(&rest, nullptr);
  }
}

// Ends the registration of the calling thread, and of this one alone.
inline bool Unregister(port::RestartArea* area) {
  constexpr long kUnregister = 1;
  constexpr long kSignature = 0x53053053;
  for (long size = 32; size <= 512; size += 4) {  // as the C library registered it
    if (syscall(SYS_rseq, area, size, kUnregister, kSignature) == 0) return true;
  }
  return false;
}

// The memory that both sides see: a file, so that a system call can write it too.
class SharedMemory {
 public:
  struct Head {
    std::atomic<int64_t> deadline;
    std::atomic<int64_t> result;
    std::atomic<int64_t> allowed;  // nanoseconds until the deadline that the child sets
    std::atomic<int> done;
  };
  explicit SharedMemory(size_t size) : size_(size), fd_(memfd_create("fence", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(kHead + 2 * size)), 0);
    void* mapped = mmap(nullptr, kHead + 2 * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    base_ = static_cast<uint8_t*>(mapped);
    Fill(kOld);
    std::memset(from(), kLate, size);
  }
  ~SharedMemory() {
    munmap(base_, kHead + 2 * size_);
    close(fd_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Head& head() { return *reinterpret_cast<Head*>(base_); }
  uint8_t* to() { return base_ + kHead; }
  uint8_t* from() { return base_ + kHead + size_; }
  void Fill(uint8_t value) { std::memset(to(), value, size_); }
  size_t CountOf(uint8_t value) {
    return static_cast<size_t>(std::count(to(), to() + size_, value));
  }
  void SetDeadline(Time deadline) { head().deadline = deadline.time_since_epoch().count(); }
  Time deadline() { return Time(Duration(head().deadline.load())); }
  size_t size() const { return size_; }

  // In the child. Bytes stored, or the system call's result.
  int64_t Run(Call call) {
    if (call == Call::kCopy) {
      return static_cast<int64_t>(FencedCopy(to(), from(), size_, deadline()));
    }
    return FencedSyscall(deadline(), SYS_pwrite64, fd_, reinterpret_cast<long>(from()),
                         static_cast<long>(size_), static_cast<long>(kHead));
  }

 private:
  static constexpr size_t kHead = 4096;
  size_t size_;
  int fd_;
  uint8_t* base_;
};

// In the child, first of all.
inline void PrepareChild(Kernel kernel) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (kernel == Kernel::kHelps) return;
  port::RestartArea* area = port::ThreadRestartArea();
  if (!Unregister(area)) _exit(78);
  reinterpret_cast<int32_t*>(area)[1] = 0;  // cpu_id: "registered"
}

inline std::string WhyNotExact() {
  return "the kernel or the C library offers no restartable sequences here";
}

}  // namespace moonpool::fence_testing
