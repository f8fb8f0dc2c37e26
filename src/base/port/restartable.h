#pragma once

// Restartable sequences (Linux rseq, registered by the C library for every thread since glibc
// 2.35), one piece of work at a time. Used by base/fence.cc alone; its header says what for.
//
// A sequence is Arm, then anything (reading a clock), then one Restartable… call with the same
// area. The call does its work only if the thread was neither preempted nor interrupted by a signal
// since Arm, and is abandoned, at any instruction, when that happens inside of it: then it returns
// that it must be tried again from Arm. Work that was abandoned has been done in part.
//
// Threads: an area belongs to its thread.

#include <cstddef>
#include <cstdint>

namespace moonpool::port {

// The kernel's structure: what we use of it (linux/rseq.h).
struct RestartArea;

// The calling thread's, or null: no kernel or library support, or not this kind of machine.
RestartArea* ThreadRestartArea();

// The kinds of work; each is one stretch of instructions known to the kernel.
enum class Restartable { kCopy, kSyscall };

void Arm(RestartArea* area, Restartable work);
// Forgets what was armed. Requires: done before the thread leaves the fence.
void Disarm(RestartArea* area);

// False: try again from Arm.
bool RestartableCopy(RestartArea* area, void* to, const void* from, size_t size);

struct SyscallOutcome {
  long value;          // what the kernel returned
  long not_performed;  // not 0: try again from Arm
};
SyscallOutcome RestartableSyscall(RestartArea* area, long number, const long (&arguments)[6]);

// The first instruction of a kind of work and the first behind it, for tests; 0 where there is no
// such thing.
struct CodeRange {
  uintptr_t begin;
  uintptr_t end;
};
CodeRange RestartableRange(Restartable work);

}  // namespace moonpool::port
