// Whatever a peer sends: the decoders end, take no more than there is, and what DecodeRequest
// accepts encodes to a message that reads the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "http/message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonpool::http;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const bool eof : {false, true}) {
    const auto response = DecodeResponse(bytes, {.eof = eof, .body_bytes_max = 1 << 16});
    if (response.ok() && response->has_value()) MOONPOOL_CHECK((*response)->bytes <= size);
  }
  (void)ParseUrl(bytes).ok();
  const auto request = DecodeRequest(bytes, 1 << 16);
  if (!request.ok() || !request->has_value()) return 0;
  MOONPOOL_CHECK((*request)->bytes <= size);
  const Request& message = (*request)->message;
  if (message.path == "*") return 0;
  const std::string encoded = Encode(message, "h");
  const auto again = DecodeRequest(encoded);
  if (encoded.size() - message.body.size() > kHeaderBytesMax) return 0;  // escapes made it longer
  if (!again.ok()) return 0;  // fields that Encode leaves out, e.g. an unknown Expect
  MOONPOOL_CHECK(again->has_value());
  MOONPOOL_CHECK((*again)->message.path == message.path);
  MOONPOOL_CHECK((*again)->message.query == message.query);
  MOONPOOL_CHECK((*again)->message.body == message.body);
  return 0;
}
