#include "transport/local/pull.h"

#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "base/check.h"
#include "base/fence.h"

namespace moonpool::local {
namespace {

// The ranges of one process_vm_readv call, joined where they touch on both sides.
struct Vectors {
  std::array<iovec, kStepMoves + 1> here;
  std::array<iovec, kStepMoves + 1> there;
  size_t count = 0;
  size_t bytes = 0;

  void Add(std::byte* to, uint64_t from, size_t size) {
    bytes += size;
    if (count > 0) {
      iovec& a = here[count - 1];
      iovec& b = there[count - 1];
      if (static_cast<std::byte*>(a.iov_base) + a.iov_len == to &&
          reinterpret_cast<uint64_t>(b.iov_base) + b.iov_len == from) {
        a.iov_len += size;
        b.iov_len += size;
        return;
      }
    }
    here[count] = {to, size};
    there[count] = {reinterpret_cast<void*>(from), size};
    ++count;
  }
};

Code CodeOf(long error) {
  switch (error) {
    case ETIME:
      return Code::kTimedOut;
    case EFAULT:
      return Code::kInvalidArgument;
    case EPERM:
    case ENOSYS:
      return Code::kUnsupported;
    default:
      return Code::kUnavailable;  // ESRCH: it ended; ENOMEM: try another path
  }
}

// What a short call left: the kernel stops at the first bad page and reports the count, so the
// remaining bytes are tried alone to learn the reason; the token must still come along.
Code Reason(const Origin& origin, Vectors& all, size_t done, Time deadline) {
  size_t index = 0;
  while (index < all.count && done >= all.here[index].iov_len) done -= all.here[index++].iov_len;
  if (index == all.count) return Code::kUnavailable;  // all but the token
  iovec here{static_cast<std::byte*>(all.here[index].iov_base) + done, 1};
  iovec there{static_cast<std::byte*>(all.there[index].iov_base) + done, 1};
  const long got =
      FencedSyscall(deadline, SYS_process_vm_readv, origin.pid, reinterpret_cast<long>(&here), 1,
                    reinterpret_cast<long>(&there), 1, 0);
  // One byte that can be read now means that the memory or the process changed under us.
  return got < 0 ? CodeOf(-got) : Code::kUnavailable;
}

Code Read(const Origin& origin, Vectors& all, Time deadline) {
  const size_t ranges = all.count;
  const size_t bytes = all.bytes;
  if (ranges == 0) return Code::kOk;
  if (!origin.cma()) return Code::kUnsupported;
  Token seen{};
  all.here[ranges] = {seen.data(), seen.size()};
  all.there[ranges] = {reinterpret_cast<void*>(origin.cell.address), seen.size()};
  const long got =
      FencedSyscall(deadline, SYS_process_vm_readv, origin.pid,
                    reinterpret_cast<long>(all.here.data()), static_cast<long>(ranges + 1),
                    reinterpret_cast<long>(all.there.data()), static_cast<long>(ranges + 1), 0);
  if (got < 0) return CodeOf(-got);
  if (static_cast<size_t>(got) != bytes + seen.size()) {
    return Reason(origin, all, static_cast<size_t>(got), deadline);
  }
  return seen == origin.cell.token ? Code::kOk : Code::kUnavailable;
}

}  // namespace

Code PullStep(const Origin& origin, std::span<const Move> moves, Time deadline) {
  MOONPOOL_CHECK(moves.size() <= kStepMoves);
  Vectors vectors;
  for (const Move& move : moves) {
    if (move.mapped == nullptr) {
      vectors.Add(move.to, move.from, move.size);
    } else if (FencedCopy(move.to, move.mapped, move.size, deadline) != move.size) {
      return Code::kTimedOut;
    }
  }
  return Read(origin, vectors, deadline);
}

}  // namespace moonpool::local
