#include "base/log.h"

#include <unistd.h>

#include <cstdio>

#include "base/mutex.h"

namespace moonpool {
namespace {

constexpr size_t kLineMax = 4096;

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    default:
      return "ERROR";
  }
}

void AppendEscaped(std::string& line, std::string_view text) {
  const bool quote = text.empty() || text.find_first_of(" \"=") != std::string_view::npos;
  if (quote) line += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\x%02x", byte);
      line += buffer;
    } else if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else {
      line += c;
    }
  }
  if (quote) line += '"';
}

void WriteToStandardError(LogLevel level, std::string_view line) {
  std::string text = Str("moonpool ", LevelName(level), " ", line, "\n");
  // A full or closed standard error must not stop the caller; a lost line is all that happens.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

struct Logger::State {
  Mutex mutex;
  Sink sink MOONPOOL_GUARDED_BY(mutex);
};

Logger::Logger(LogLevel level, Sink sink) : level_(level), state_(std::make_unique<State>()) {
  MutexLock lock(state_->mutex);
  state_->sink = sink ? std::move(sink) : WriteToStandardError;
}

Logger::~Logger() = default;

void Logger::Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!enabled(level)) return;
  std::string line(event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    AppendEscaped(line, field.value);
  }
  if (line.size() > kLineMax) {
    line.resize(kLineMax - 3);
    line += "...";
  }
  MutexLock lock(state_->mutex);
  state_->sink(level, line);
}

}  // namespace moonpool
