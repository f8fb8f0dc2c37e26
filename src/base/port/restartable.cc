#include "base/port/restartable.h"

#if defined(__x86_64__) && defined(__linux__)

#include <dlfcn.h>

namespace moonpool::port {

// The layout of the kernel's struct rseq; it never changes at its beginning.
struct alignas(32) RestartArea {
  uint32_t cpu_id_start;
  int32_t cpu_id;  // negative: the thread is not registered
  uint64_t descriptor;
  uint32_t flags;
};
static_assert(offsetof(RestartArea, descriptor) == 8);

}  // namespace moonpool::port

// The code. A descriptor (struct rseq_cs) names the first instruction, the length and where to go
// when abandoned; that place must be preceded by the signature, which here is the operand of an
// invalid instruction, so that disassemblers do not lose their way.
//
// Each stretch begins by looking whether the area still holds its descriptor: the kernel clears it
// when it finds the thread, preempted or signalled, outside of the stretch. So everything since the
// store in Arm is covered, without being part of the stretch.
asm(R"(
    .hidden moonpool_copy, moonpool_copy_descriptor, moonpool_copy_begin, moonpool_copy_end
    .hidden moonpool_syscall, moonpool_syscall_descriptor
    .hidden moonpool_syscall_begin, moonpool_syscall_end
    .globl moonpool_copy, moonpool_copy_descriptor, moonpool_copy_begin, moonpool_copy_end
    .globl moonpool_syscall, moonpool_syscall_descriptor
    .globl moonpool_syscall_begin, moonpool_syscall_end
    .pushsection .data.rel.ro.moonpool_restartable, "aw", @progbits
    .balign 32
moonpool_copy_descriptor:
    .long 0, 0
    .quad moonpool_copy_begin, moonpool_copy_end - moonpool_copy_begin, moonpool_copy_abort
    .balign 32
moonpool_syscall_descriptor:
    .long 0, 0
    .quad moonpool_syscall_begin, moonpool_syscall_end - moonpool_syscall_begin
    .quad moonpool_syscall_abort
    .popsection

    .pushsection .text.moonpool_restartable, "ax", @progbits
    .balign 64
    # long moonpool_copy(RestartArea*, void* to, const void* from, size_t size): 0 when done
    .type moonpool_copy, @function
moonpool_copy:
    .cfi_startproc
    movq %rdi, %rax
    movq %rsi, %rdi
    movq %rdx, %rsi
    leaq moonpool_copy_descriptor(%rip), %rdx
moonpool_copy_begin:
    cmpq %rdx, 8(%rax)
    jne moonpool_copy_abort
    rep movsb
moonpool_copy_end:
    xorl %eax, %eax
    ret
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053
moonpool_copy_abort:
    movl $1, %eax
    ret
    .cfi_endproc
    .size moonpool_copy, . - moonpool_copy

    .balign 64
    # SyscallOutcome moonpool_syscall(RestartArea*, long number, const long* arguments)
    .type moonpool_syscall, @function
moonpool_syscall:
    .cfi_startproc
    movq %rdi, %rcx
    movq %rsi, %rax
    movq %rdx, %r11
    movq 0(%r11), %rdi
    movq 8(%r11), %rsi
    movq 16(%r11), %rdx
    movq 24(%r11), %r10
    movq 32(%r11), %r8
    movq 40(%r11), %r9
    leaq moonpool_syscall_descriptor(%rip), %r11
moonpool_syscall_begin:
    cmpq %r11, 8(%rcx)
    jne moonpool_syscall_abort
    syscall
moonpool_syscall_end:
    xorl %edx, %edx
    ret
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053
moonpool_syscall_abort:
    movl $1, %edx
    ret
    .cfi_endproc
    .size moonpool_syscall, . - moonpool_syscall
    .popsection
)");

extern "C" {
extern const char moonpool_copy_descriptor[];
extern const char moonpool_copy_begin[];
extern const char moonpool_copy_end[];
extern const char moonpool_syscall_descriptor[];
extern const char moonpool_syscall_begin[];
extern const char moonpool_syscall_end[];
long moonpool_copy(moonpool::port::RestartArea* area, void* to, const void* from, size_t size);
moonpool::port::SyscallOutcome moonpool_syscall(moonpool::port::RestartArea* area, long number,
                                                const long* arguments);
}

namespace moonpool::port {
namespace {

struct Library {
  uintptr_t offset = 0;  // of the area from the thread pointer
  bool present = false;
};

// Looked up by name: an older C library has no such symbols, and that must not stop the program.
const Library& RestartLibrary() {
  static const Library kLibrary = [] {
    const auto* size = static_cast<const unsigned*>(dlsym(RTLD_DEFAULT, "__rseq_size"));
    const auto* offset = static_cast<const ptrdiff_t*>(dlsym(RTLD_DEFAULT, "__rseq_offset"));
    if (size == nullptr || offset == nullptr || *size == 0) return Library{};
    return Library{static_cast<uintptr_t>(*offset), true};
  }();
  return kLibrary;
}

}  // namespace

RestartArea* ThreadRestartArea() {
  const Library& library = RestartLibrary();
  if (!library.present) return nullptr;
  uintptr_t thread_pointer;
  asm("movq %%fs:0, %0" : "=r"(thread_pointer));
  auto* area = reinterpret_cast<RestartArea*>(thread_pointer + library.offset);
  // Written by the kernel alone.
  return __atomic_load_n(&area->cpu_id, __ATOMIC_RELAXED) >= 0 ? area : nullptr;
}

void Arm(RestartArea* area, Restartable work) {
  const char* descriptor =
      work == Restartable::kCopy ? moonpool_copy_descriptor : moonpool_syscall_descriptor;
  // Read by the kernel and by the code above, on this thread; nothing may move before it.
  __atomic_store_n(&area->descriptor, reinterpret_cast<uint64_t>(descriptor), __ATOMIC_RELAXED);
  asm volatile("" ::: "memory");
}

void Disarm(RestartArea* area) {
  asm volatile("" ::: "memory");
  __atomic_store_n(&area->descriptor, 0, __ATOMIC_RELAXED);
}

bool RestartableCopy(RestartArea* area, void* to, const void* from, size_t size) {
  return moonpool_copy(area, to, from, size) == 0;
}

SyscallOutcome RestartableSyscall(RestartArea* area, long number, const long (&arguments)[6]) {
  return moonpool_syscall(area, number, arguments);
}

CodeRange RestartableRange(Restartable work) {
  if (work == Restartable::kCopy) {
    return {reinterpret_cast<uintptr_t>(moonpool_copy_begin),
            reinterpret_cast<uintptr_t>(moonpool_copy_end)};
  }
  return {reinterpret_cast<uintptr_t>(moonpool_syscall_begin),
          reinterpret_cast<uintptr_t>(moonpool_syscall_end)};
}

}  // namespace moonpool::port

#else

namespace moonpool::port {

RestartArea* ThreadRestartArea() { return nullptr; }
void Arm(RestartArea*, Restartable) {}
void Disarm(RestartArea*) {}
bool RestartableCopy(RestartArea*, void*, const void*, size_t) { return false; }
SyscallOutcome RestartableSyscall(RestartArea*, long, const long (&)[6]) { return {0, 1}; }
CodeRange RestartableRange(Restartable) { return {0, 0}; }

}  // namespace moonpool::port

#endif
