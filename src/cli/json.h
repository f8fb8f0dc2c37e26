#pragma once

// Json: writes one JSON value, piece by piece, with commas where they belong. For what `--json`
// prints. Not responsible for: reading, checking that braces match (asserted by the caller's
// tests). Threads: thread-compatible.

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace moonpool::cli {

class Json {
 public:
  Json& Open(char bracket) {
    Comma();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  Json& Close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  Json& Key(std::string_view key) {
    Text(key);
    text_ += ':';
    fresh_ = true;
    return *this;
  }
  Json& Text(std::string_view value) {
    Comma();
    text_ += '"';
    for (const char c : value) Escape(c);
    text_ += '"';
    return *this;
  }
  Json& Number(uint64_t value) { return Raw(std::to_string(value)); }
  Json& Number(int64_t value) { return Raw(std::to_string(value)); }
  Json& Bool(bool value) { return Raw(value ? "true" : "false"); }
  Json& Null() { return Raw("null"); }
  // A value that is JSON already.
  Json& Raw(std::string_view value) {
    Comma();
    text_ += value;
    return *this;
  }
  Json& TextOrNull(std::string_view value) { return value.empty() ? Null() : Text(value); }

  const std::string& str() const { return text_; }

 private:
  void Comma() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }
  void Escape(char c) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (byte < 0x20) {
      const char* const digits = "0123456789abcdef";
      text_ += "\\u00";
      text_ += digits[byte >> 4];
      text_ += digits[byte & 15];
    } else {
      text_ += c;
    }
  }

  std::string text_;
  bool fresh_ = true;
};

}  // namespace moonpool::cli
