#pragma once

// Where in the source a Status was made. std::source_location in a form that clang 14 with libstdc++ 12 also sees.

#include <cstdint>

namespace moonpool {

struct SourceLocation {
  const char* file = "";
  uint32_t line = 0;
  static constexpr SourceLocation Current(const char* file = __builtin_FILE(),
                                          uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace moonpool
