#include "python/waiting.h"

#include <unistd.h>

#include <cmath>

#include "base/str.h"
#include "python/errors.h"

namespace nb = nanobind;

namespace moonpool::python {

Duration Seconds(const std::optional<double>& seconds, const char* what) {
  if (!seconds.has_value()) return kAsLongAsItTakes;
  if (std::isnan(*seconds) || *seconds < 0)
    RaiseInvalid(Str(what, ": must be a number of seconds, 0 or more, not ", *seconds));
  const double longest = std::chrono::duration<double>(kAsLongAsItTakes).count();
  if (*seconds >= longest) return kAsLongAsItTakes;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

void CheckSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

bool OnMainThread() { return ::getpid() == ::gettid(); }

}  // namespace moonpool::python
