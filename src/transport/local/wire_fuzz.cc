// Every decoder of the local transport over arbitrary bytes: the first byte chooses one. What is
// accepted must be encoded to the same bytes again.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "transport/local/wire.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonpool::local;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Hello hello;
  Welcome welcome;
  Write write;
  Reply reply;
  ArenaMessage arena;
  switch (data[0] % 6) {
    case 0:
      if (const auto address = DecodeAddress(bytes); address.ok()) {
        Require(EncodeAddress(*address) == bytes);
      }
      break;
    case 1:
      if (DecodeHello(bytes, &hello)) Require(EncodeHello(hello) == bytes);
      break;
    case 2:
      if (DecodeWelcome(bytes, &welcome)) Require(EncodeWelcome(welcome) == bytes);
      break;
    case 3:
      if (DecodeWrite(bytes, &write)) {
        std::string out(kMessageMax, '\0');
        out.resize(EncodeWrite(write, out.data()));
        Require(out == bytes);
      }
      break;
    case 4:
      if (DecodeReply(bytes, &reply)) Require(BytesOf(reply) == bytes);
      break;
    default:
      if (DecodeArena(bytes, &arena)) Require(BytesOf(arena) == bytes);
      break;
  }
  return 0;
}
