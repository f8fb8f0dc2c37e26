#pragma once

// Status: the outcome of a call that can fail, as a code that says what the caller does next, a
// message for people and the place in the source that made it. Result<T>: a value or a Status. Both
// must be looked at ([[nodiscard]]).
//
// Not responsible for: stack traces, chains of causes (put the cause into the message), the data
// path (completions carry the Code alone).
//
// Threads: values; thread-compatible.
//
//   Result<int> Port(std::string_view text);
//   Status Use(std::string_view text) {
//     MOONPOOL_ASSIGN_OR_RETURN(int port, Port(text));
//     return Listen(port);
//   }

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/port/source_location.h"

namespace moonpool {

// A new code needs a caller that reacts to it. The numbers travel on wires and never change.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // fix the call
  kNotFound = 2,         // the named thing does not exist
  kAlreadyExists = 3,    // the named thing exists
  kAgain = 4,            // retry after progress
  kUnavailable = 5,      // try another path or replica
  kTimedOut = 6,         // the deadline passed
  kCancelled = 7,        // somebody asked for it
  kExhausted = 8,        // free something first
  kStale = 9,            // refresh what you know (epoch, key, incarnation), then retry
  kCorrupt = 10,         // the bytes are wrong
  kUnsupported = 11,     // this build, kernel or peer cannot
  kInternal = 12,        // a defect of ours
};
inline constexpr int kCodeCount = 13;

// "ok", "invalid_argument", …; "unknown" for a number out of range.
std::string_view CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  // Requires: code is not kOk.
  Status(Code code, std::string message, SourceLocation where = SourceLocation::Current());

  static Status Ok() { return Status(); }

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  // Empty when ok.
  const std::string& message() const;
  SourceLocation where() const;
  // "timed_out: read from 10.0.0.7:1234: …".
  std::string ToString() const;
  // The same code and place, the message prefixed with "context: ".
  Status WithContext(std::string_view context) const;

 private:
  struct Rep {
    Code code;
    std::string message;
    SourceLocation where;
  };
  std::shared_ptr<const Rep> rep_;  // shared by copies of one Status; immutable
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {
    MOONPOOL_CHECK(!status_.ok());
  }  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  Code code() const { return status_.code(); }

  // Requires: ok().
  T& value() & { return Checked(), *value_; }
  const T& value() const& { return Checked(), *value_; }
  T&& value() && { return Checked(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Checked() const { MOONPOOL_CHECK(value_.has_value()); }
  Status status_;
  std::optional<T> value_;
};

#define MOONPOOL_CONCAT_INNER(a, b) a##b
#define MOONPOOL_CONCAT(a, b) MOONPOOL_CONCAT_INNER(a, b)

#define MOONPOOL_RETURN_IF_ERROR(expr)                                      \
  do {                                                                      \
    if (::moonpool::Status moonpool_status = (expr); !moonpool_status.ok()) \
      return moonpool_status;                                               \
  } while (false)

#define MOONPOOL_ASSIGN_OR_RETURN(lhs, expr) \
  MOONPOOL_ASSIGN_OR_RETURN_INNER(MOONPOOL_CONCAT(moonpool_result_, __LINE__), lhs, expr)
#define MOONPOOL_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return tmp.status();                   \
  lhs = std::move(tmp).value()

}  // namespace moonpool
