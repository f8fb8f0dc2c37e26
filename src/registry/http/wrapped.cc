#include "registry/http/wrapped.h"

#include <charconv>
#include <cstdio>

#include "base/str.h"

namespace moonpool::registry::http {
namespace {

constexpr std::string_view kFirst = "moonpool-entry 1 ";

// Takes a number and what must follow it.
template <typename T>
bool Take(std::string_view& text, char end_mark, int base, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  if (error != std::errc() || end == text.data() + text.size() || *end != end_mark) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

std::string EncodeWrapped(const Wrapped& entry) {
  char owner[17] = {};
  std::snprintf(owner, sizeof(owner), "%016llx", static_cast<unsigned long long>(entry.owner));
  return Str(kFirst, owner, " ", entry.version, " ", entry.expires_unix_ms, "\n", entry.value);
}

Result<Wrapped> DecodeWrapped(std::string_view bytes) {
  std::string_view rest = bytes;
  Wrapped out;
  const bool ours = rest.starts_with(kFirst);
  if (ours) rest.remove_prefix(kFirst.size());
  if (!ours || !Take(rest, ' ', 16, out.owner) || !Take(rest, ' ', 10, out.version) ||
      !Take(rest, '\n', 10, out.expires_unix_ms)) {
    return Status(Code::kCorrupt, "an entry that another program stored");
  }
  out.value = rest;
  return out;
}

}  // namespace moonpool::registry::http
