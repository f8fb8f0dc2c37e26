// Whatever a peer sends: Decode ends, and a frame that it accepts encodes to the bytes that it was
// read from.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "rpc/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonpool::rpc;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto range = DecodeRange(bytes); range.ok()) (void)Negotiate(kVersions, *range).ok();
  const auto frame = Decode(bytes, 1 << 20);
  if (!frame.ok() || !frame->has_value()) return 0;
  MOONPOOL_CHECK((*frame)->size() <= size);
  const bool unknown_code =
      (*frame)->kind == Kind::kReply && (*frame)->code == moonpool::Code::kInternal;
  if (!unknown_code) MOONPOOL_CHECK(Encode(**frame) == bytes.substr(0, (*frame)->size()));
  return 0;
}
