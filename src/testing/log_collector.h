#pragma once

// LogCollector: keeps the lines of a Logger for a test to look at.
//
//   LogCollector lines;
//   Logger log(LogLevel::kDebug, lines.sink());
//
// Ownership: outlives the loggers that write to it. Threads: thread-safe. Keeps the last kLinesMax
// lines.

#include <deque>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/mutex.h"

namespace moonpool::testing {

class LogCollector {
 public:
  static constexpr size_t kLinesMax = 10'000;

  LogCollector() = default;
  LogCollector(const LogCollector&) = delete;
  LogCollector& operator=(const LogCollector&) = delete;

  Logger::Sink sink();
  // Lines of at least `level` that contain `text`.
  size_t Count(std::string_view text, LogLevel level = LogLevel::kDebug) const;
  // All lines, one below the other, for a failure's message.
  std::string Text() const;

 private:
  struct Line {
    LogLevel level;
    std::string text;
  };
  mutable Mutex mutex_;
  std::deque<Line> lines_ MOONPOOL_GUARDED_BY(mutex_);
};

}  // namespace moonpool::testing
