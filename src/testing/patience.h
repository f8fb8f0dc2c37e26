#pragma once

// How long a test waits for what must happen, and names that no other test has. Threads:
// thread-safe.

#include <string>
#include <string_view>

#include "base/clock.h"

namespace moonpool::testing {

// `base` times MOONPOOL_PATIENCE of the environment (a number from 0.1 to 1000; 1 when absent or
// not a number): slow machines, sanitizers and emulators set it.
Duration Patience(Duration base = std::chrono::seconds(30));

// `prefix` with the process id and a number: never the same twice on one machine.
std::string UniqueName(std::string_view prefix);

}  // namespace moonpool::testing
