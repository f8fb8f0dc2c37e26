// Fuzz target of the decoders: the first byte chooses one. What decodes must be what its type
// promises, and must come back when it is encoded again.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {
namespace {

void FuzzRequest(std::span<const std::byte> in) {
  if (in.size() < kHeadBytes) return;
  Request out;
  const auto head = in.first<kHeadBytes>();
  if (!DecodeHead(head, &out)) return;
  const size_t table = out.head.table_bytes();
  MOONPOOL_CHECK(table <= kTableBytesMax);
  if (table > 0) {
    if (in.size() < kHeadBytes + table) return;
    if (!DecodeTable(head, in.subspan(kHeadBytes, table), &out)) return;
  }
  MOONPOOL_CHECK(out.keys.size() == out.head.keys);
  MOONPOOL_CHECK(out.pieces.size() == out.head.pieces);
  uint64_t sum = 0;
  for (const RemotePiece& piece : out.pieces) {
    MOONPOOL_CHECK(piece.size > 0);
    MOONPOOL_CHECK(piece.key < out.keys.size());
    sum += piece.size;
  }
  MOONPOOL_CHECK(sum == out.head.bytes);
  MOONPOOL_CHECK(sum <= kSliceBytes);
}

void FuzzOne(uint8_t which, std::span<const std::byte> in) {
  switch (which % 6) {
    case 0:
      FuzzRequest(in);
      return;
    case 1:
      if (in.size() >= kHelloBytes) (void)DecodeHello(in.first<kHelloBytes>());
      return;
    case 2:
      if (in.size() >= kWelcomeBytes) (void)DecodeWelcome(in.first<kWelcomeBytes>());
      return;
    case 3:
      if (in.size() >= kReplyBytes) (void)DecodeReply(in.first<kReplyBytes>());
      return;
    case 4:
      if (in.size() >= kTrailerBytes) (void)DecodeTrailer(in.first<kTrailerBytes>());
      return;
    default: {
      const std::string_view blob(reinterpret_cast<const char*>(in.data()), in.size());
      auto address = DecodeAddress(blob);
      if (!address.ok()) return;
      auto again = DecodeAddress(EncodeAddress(*address));
      MOONPOOL_CHECK(again.ok());
      MOONPOOL_CHECK(again->id == address->id);
      MOONPOOL_CHECK(again->port == address->port);
    }
  }
}

}  // namespace
}  // namespace moonpool::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  moonpool::tcp::FuzzOne(data[0], std::as_bytes(std::span(data + 1, size - 1)));
  return 0;
}
