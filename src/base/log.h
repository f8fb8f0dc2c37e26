#pragma once

// Log lines: an event in lower case, then key-value pairs with units in the keys, to a sink that
// the composition root gives. error = someone must act; warning = odd but handled; info =
// life-cycle; debug = per object; nothing per slice. Log where the error is first known, once.
//
//   log.Warning("peer lost", {{"peer", name}, {"cause", status.message()}});
//
// Threads: Logger is thread-safe; a sink is called by one thread at a time. Lines are bounded to 4
// KiB; control characters in values are escaped (peers' text cannot forge a line).

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "base/str.h"

namespace moonpool {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

struct LogField {
  template <typename T>
  LogField(std::string_view key_in, const T& value_in) : key(key_in), value(Str(value_in)) {}
  std::string_view key;
  std::string value;
};

class Logger {
 public:
  // Receives the level and the formatted line without its end.
  using Sink = std::function<void(LogLevel, std::string_view line)>;

  // Everything below `level` is dropped. The default sink writes `moonpool <LEVEL> <line>` to
  // standard error.
  explicit Logger(LogLevel level = LogLevel::kWarning, Sink sink = {});
  ~Logger();

  bool enabled(LogLevel level) const { return level >= level_; }
  void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);
  void Debug(std::string_view event, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kDebug, event, fields);
  }
  void Info(std::string_view event, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kInfo, event, fields);
  }
  void Warning(std::string_view event, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kWarning, event, fields);
  }
  void Error(std::string_view event, std::initializer_list<LogField> fields = {}) {
    Log(LogLevel::kError, event, fields);
  }

 private:
  struct State;
  const LogLevel level_;
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool
