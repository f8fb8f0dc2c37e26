// Whatever text a user or peer gives: ParseHostPort ends, and what it accepts prints as text that
// reads back the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "net/address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto port : {std::optional<uint16_t>(), std::optional<uint16_t>(80)}) {
    const auto parsed = moonpool::net::ParseHostPort(text, port);
    if (!parsed.ok()) continue;
    const auto again = moonpool::net::ParseHostPort(parsed->ToString());
    MOONPOOL_CHECK(again.ok());
    MOONPOOL_CHECK(*again == *parsed);
  }
  return 0;
}
