// Whatever a metadata server returns: DecodeWrapped ends, and what it accepts reads back the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "registry/http/wrapped.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonpool::registry::http;
  const auto entry = DecodeWrapped({reinterpret_cast<const char*>(data), size});
  if (entry.ok()) MOONPOOL_CHECK(DecodeWrapped(EncodeWrapped(*entry)).value() == *entry);
  return 0;
}
