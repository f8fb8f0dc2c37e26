#include "testing/patience.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/random.h"
#include "base/str.h"

namespace moonpool::testing {

Duration Patience(Duration base) {
  const char* text = std::getenv("MOONPOOL_PATIENCE");
  if (text == nullptr) return base;
  char* end = nullptr;
  const double factor = std::strtod(text, &end);
  if (end == text || !(factor > 0)) return base;
  return std::chrono::duration_cast<Duration>(base * std::clamp(factor, 0.1, 1000.0));
}

std::string UniqueName(std::string_view prefix) {
  return Str(prefix, "-", ::getpid(), "-", std::hex, SecureUint64());
}

}  // namespace moonpool::testing
