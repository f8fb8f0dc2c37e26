#pragma once

// Whether this build carries a sanitizer, whose shadow memory and slowness make figures of memory and time meaningless;
// and what the thread sanitizer cannot know by itself, which is nothing in any other build.
// Threads: each object concerns the thread that makes it.

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}
#endif

namespace moonpool {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

// Whether that is the thread sanitizer.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// While it lives, this thread reads registered memory for a peer. The owner may write to the memory meanwhile: what is
// read then is for nobody (the peer has given up), or the peer's own concern, as with a network card that reads.
class OneSidedRead {
 public:
  OneSidedRead() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
#endif
  }
  ~OneSidedRead() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  OneSidedRead(const OneSidedRead&) = delete;
  OneSidedRead& operator=(const OneSidedRead&) = delete;
};

}  // namespace moonpool
