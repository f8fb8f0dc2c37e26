#pragma once

// The fence against late writes. "Check the deadline, then touch the memory" is made one
// restartable sequence (Linux rseq): when the thread is preempted, stopped (SIGSTOP), migrated or
// signalled anywhere between reading the clock and the last store (or the instruction that enters
// the kernel), it starts again from the clock. So a process that was frozen past a deadline and
// thawed does not store one byte of what the deadline forbids, wherever it was frozen.
//
// Where the kernel or the C library offers no rseq, or the thread's is not registered, the same
// functions check the clock immediately before; FenceIsExact() says which it is (`moonpool info`
// prints it).
//
// A system call entered before the deadline is finished by the kernel at once (sockets are
// non-blocking, copies are bounded): that is the only overlap. One that the kernel wants to start
// again after a signal begins again from the clock too. What the kernel cannot see does not restart
// anything: a whole machine that its hypervisor pauses between the clock and the store.
//
// Threads: thread-safe; each call concerns the calling thread.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace moonpool {

// True when the calling thread's sequences are restartable.
bool FenceIsExact();

// Copies `size` bytes from `from` to `to` unless `deadline` has passed; in pieces of kFencePiece,
// each fenced. Returns the bytes copied: all, or fewer when the deadline came; up to a piece more
// may then have been stored in part, before the deadline. A piece may be stored twice, with the
// same bytes.
inline constexpr size_t kFencePiece = size_t{16} * 1024;
size_t FencedCopy(void* to, const void* from, size_t size, Time deadline);

// Runs system call `number` with up to six arguments unless `deadline` has passed. Returns what the
// kernel returned (a negative errno on failure), or -ETIME (the call was not made) when the
// deadline has passed.
long FencedSyscall(Time deadline, long number, long a = 0, long b = 0, long c = 0, long d = 0,
                   long e = 0, long f = 0);

}  // namespace moonpool
