#pragma once

// How an entry is kept on a server without leases (Mooncake's plain metadata server): the value
// behind one line of text that says who owns it and until when it is to be believed.
//
//   moonpool-entry 1 <owner: 16 hex digits> <version> <expires: Unix time in ms>\n<value>
//
// Threads: values and pure functions.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "registry/registry.h"

namespace moonpool::registry::http {

struct Wrapped {
  OwnerToken owner = 0;
  uint64_t version = 0;
  int64_t expires_unix_ms = 0;
  std::string value{};
  friend bool operator==(const Wrapped&, const Wrapped&) = default;
};

std::string EncodeWrapped(const Wrapped& entry);
// kCorrupt: these bytes were not stored by us.
Result<Wrapped> DecodeWrapped(std::string_view bytes);

}  // namespace moonpool::registry::http
