#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/descriptor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto descriptor = moonpool::engine::DecodeDescriptor(bytes);
  if (descriptor.ok() && moonpool::engine::EncodeDescriptor(*descriptor) != bytes) __builtin_trap();
  const auto notify = moonpool::engine::DecodeNotify(bytes);
  if (notify.ok() && moonpool::engine::EncodeNotify(*notify) != bytes) __builtin_trap();
  return 0;
}
