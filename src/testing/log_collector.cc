#include "testing/log_collector.h"

#include <algorithm>

namespace moonpool::testing {

Logger::Sink LogCollector::sink() {
  return [this](LogLevel level, std::string_view line) {
    MutexLock lock(mutex_);
    if (lines_.size() == kLinesMax) lines_.pop_front();
    lines_.push_back({level, std::string(line)});
  };
}

size_t LogCollector::Count(std::string_view text, LogLevel level) const {
  MutexLock lock(mutex_);
  size_t count = 0;
  for (const Line& line : lines_) {
    if (line.level >= level && line.text.find(text) != std::string::npos) ++count;
  }
  return count;
}

std::string LogCollector::Text() const {
  MutexLock lock(mutex_);
  std::string all;
  for (const Line& line : lines_) all.append(line.text).push_back('\n');
  return all;
}

}  // namespace moonpool::testing
