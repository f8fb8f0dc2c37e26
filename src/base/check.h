#pragma once

// MOONPOOL_CHECK(condition): ends the process with the condition and its place when it does not
// hold; in every build. For our own mistakes only, one condition each; never for input, peers or
// files (those get a Status).

namespace moonpool {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace moonpool

#define MOONPOOL_CHECK(condition)                              \
  do {                                                         \
    if (!(condition)) [[unlikely]]                             \
      ::moonpool::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)
