#pragma once

// Clang's thread-safety annotations (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html). They
// expand to nothing under other compilers. Use them through base/mutex.h.

#if defined(__clang__)
#define MOONPOOL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MOONPOOL_THREAD_ATTRIBUTE(x)
#endif

#define MOONPOOL_CAPABILITY(x) MOONPOOL_THREAD_ATTRIBUTE(capability(x))
#define MOONPOOL_SCOPED_CAPABILITY MOONPOOL_THREAD_ATTRIBUTE(scoped_lockable)
#define MOONPOOL_GUARDED_BY(x) MOONPOOL_THREAD_ATTRIBUTE(guarded_by(x))
#define MOONPOOL_PT_GUARDED_BY(x) MOONPOOL_THREAD_ATTRIBUTE(pt_guarded_by(x))
#define MOONPOOL_REQUIRES(...) MOONPOOL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define MOONPOOL_ACQUIRE(...) MOONPOOL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MOONPOOL_RELEASE(...) MOONPOOL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define MOONPOOL_TRY_ACQUIRE(...) MOONPOOL_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define MOONPOOL_EXCLUDES(...) MOONPOOL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define MOONPOOL_NO_THREAD_SAFETY_ANALYSIS MOONPOOL_THREAD_ATTRIBUTE(no_thread_safety_analysis)
