#pragma once

// Str(a, b, …): the arguments' text put together, for messages. Not for the data path: it
// allocates. Threads: a pure function.

#include <sstream>
#include <string>

namespace moonpool {

template <typename... Args>
std::string Str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

}  // namespace moonpool
