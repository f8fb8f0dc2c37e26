#include "base/status.h"

#include <array>

namespace moonpool {

std::string_view CodeName(Code code) {
  static constexpr std::array<std::string_view, kCodeCount> kNames = {
      "ok",          "invalid_argument", "not_found", "already_exists", "again",
      "unavailable", "timed_out",        "cancelled", "exhausted",      "stale",
      "corrupt",     "unsupported",      "internal"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

Status::Status(Code code, std::string message, SourceLocation where) {
  MOONPOOL_CHECK(code != Code::kOk);
  rep_ = std::make_shared<const Rep>(Rep{code, std::move(message), where});
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

SourceLocation Status::where() const { return rep_ ? rep_->where : SourceLocation(); }

std::string Status::ToString() const {
  if (!rep_) return "ok";
  return std::string(CodeName(rep_->code)) + ": " + rep_->message;
}

Status Status::WithContext(std::string_view context) const {
  if (!rep_) return *this;
  return Status(rep_->code, std::string(context) + ": " + rep_->message, rep_->where);
}

}  // namespace moonpool
