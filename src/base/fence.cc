#include "base/fence.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/port/restartable.h"

namespace moonpool {
namespace {

// A thread that is disturbed this often within one piece gets smaller ones: a piece then takes less
// time than there is between two disturbances.
constexpr int kRestartsMax = 1000;
constexpr size_t kPieceMin = 64;

bool Passed(Time deadline) { return BootClock::now() >= deadline; }

size_t CopyUnrestartable(std::byte* to, const std::byte* from, size_t size, Time deadline) {
  size_t done = 0;
  while (done < size && !Passed(deadline)) {
    const size_t piece = std::min(size - done, kFencePiece);
    std::memcpy(to + done, from + done, piece);
    done += piece;
  }
  return done;
}

}  // namespace

bool FenceIsExact() { return port::ThreadRestartArea() != nullptr; }

size_t FencedCopy(void* to, const void* from, size_t size, Time deadline) {
  if (size == 0) return 0;
  if (deadline == kNever) {
    std::memcpy(to, from, size);
    return size;
  }
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  port::RestartArea* area = port::ThreadRestartArea();
  if (area == nullptr) return CopyUnrestartable(target, source, size, deadline);

  size_t done = 0;
  size_t piece_max = kFencePiece;
  int restarts = 0;
  while (done < size) {
    port::Arm(area, port::Restartable::kCopy);
    if (Passed(deadline)) break;
    const size_t piece = std::min(size - done, piece_max);
    if (port::RestartableCopy(area, target + done, source + done, piece)) {
      done += piece;
      restarts = 0;
    } else if (++restarts == kRestartsMax) {
      piece_max = std::max(piece_max / 2, kPieceMin);
      restarts = 0;
    }
  }
  port::Disarm(area);
  return done;
}

long FencedSyscall(Time deadline, long number, long a, long b, long c, long d, long e, long f) {
  port::RestartArea* area = deadline == kNever ? nullptr : port::ThreadRestartArea();
  if (area == nullptr) {
    if (deadline != kNever && Passed(deadline)) return -ETIME;
    const long result = syscall(number, a, b, c, d, e, f);
    return result == -1 ? -errno : result;
  }
  const long arguments[6] = {a, b, c, d, e, f};
  port::SyscallOutcome outcome{-ETIME, 1};
  while (outcome.not_performed != 0) {
    port::Arm(area, port::Restartable::kSyscall);
    if (Passed(deadline)) {
      outcome.value = -ETIME;
      break;
    }
    outcome = port::RestartableSyscall(area, number, arguments);
  }
  port::Disarm(area);
  return outcome.value;
}

}  // namespace moonpool
