#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace moonpool {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "moonpool: check failed: %s at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace moonpool
