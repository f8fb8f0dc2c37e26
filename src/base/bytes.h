#pragma once

// Little-endian encoding of wire and disk formats. ByteWriter appends to a string; ByteReader takes
// from a span and never reads past its end: after the first short read every call returns zero or
// empty and ok() is false, so a decoder reads all its fields and looks once.
//
// Threads: thread-compatible. The reader borrows its bytes.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace moonpool {

class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out_.append(raw, sizeof(T));
  }
  void PutRaw(std::string_view bytes) { out_.append(bytes); }
  // A 32-bit length, then the bytes.
  void PutBytes(std::string_view bytes) {
    Put(static_cast<uint32_t>(bytes.size()));
    out_.append(bytes);
  }
  const std::string& str() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
    T value{};
    const std::string_view raw = GetRaw(sizeof(T));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string_view GetRaw(size_t size) {
    if (!ok_ || rest_.size() < size) {
      ok_ = false;
      return {};
    }
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }
  // Bytes with a 32-bit length in front; longer than `max` is an error.
  std::string_view GetBytes(size_t max) {
    const auto size = Get<uint32_t>();
    if (size > max) ok_ = false;
    return GetRaw(size);
  }
  bool ok() const { return ok_; }
  // True when nothing failed and nothing is left.
  bool Done() const { return ok_ && rest_.empty(); }
  size_t remaining() const { return ok_ ? rest_.size() : 0; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace moonpool
