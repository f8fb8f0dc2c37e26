#include "transport/local/wire.h"

#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/str.h"

namespace moonpool::local {
namespace {

static_assert(std::endian::native == std::endian::little, "the structs are the wire format");

std::string_view Raw(const Token& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

void PutId(ByteWriter& out, const transport::NodeId& id) {
  out.Put(id.node);
  out.Put(id.incarnation);
}

Token GetToken(ByteReader& in) {
  Token token{};
  const std::string_view raw = in.GetRaw(token.size());
  if (in.ok()) std::memcpy(token.data(), raw.data(), token.size());
  return token;
}

transport::NodeId GetId(ByteReader& in) {
  transport::NodeId id;
  id.node = in.Get<uint64_t>();
  id.incarnation = in.Get<uint64_t>();
  return id;
}

bool ValidCode(Code code) { return static_cast<int>(code) < kCodeCount; }

template <typename T>
void Append(char*& out, const std::vector<T>& values) {
  if (values.empty()) return;
  std::memcpy(out, values.data(), values.size() * sizeof(T));
  out += values.size() * sizeof(T);
}

template <typename T>
void Take(std::string_view& in, size_t count, std::vector<T>* values) {
  values->resize(count);
  if (count != 0) std::memcpy(values->data(), in.data(), count * sizeof(T));
  in.remove_prefix(count * sizeof(T));
}

}  // namespace

std::string EncodeAddress(const Address& address) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kVersion);
  out.PutRaw(Raw(address.host.boot));
  out.Put(address.host.net_namespace);
  out.Put(address.host.pid_namespace);
  out.Put(address.pid);
  out.PutRaw(Raw(address.socket));
  PutId(out, address.id);
  return out.Take();
}

Result<Address> DecodeAddress(std::string_view blob) {
  ByteReader in(blob);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint32_t>();
  if (!in.ok() || magic != kMagic) {
    return Status(Code::kInvalidArgument, "address: not one of the local transport");
  }
  if (version != kVersion) {
    return Status(Code::kUnsupported, Str("address: version ", version, ", this is ", kVersion));
  }
  Address address;
  address.host.boot = GetToken(in);
  address.host.net_namespace = in.Get<uint64_t>();
  address.host.pid_namespace = in.Get<uint64_t>();
  address.pid = in.Get<uint32_t>();
  address.socket = GetToken(in);
  address.id = GetId(in);
  if (!in.Done()) {
    return Status(Code::kInvalidArgument, Str("address: ", blob.size(), " bytes, wrong length"));
  }
  return address;
}

uint32_t KindOf(std::string_view message) {
  uint32_t kind = 0;
  if (message.size() >= sizeof(kind)) std::memcpy(&kind, message.data(), sizeof(kind));
  return kind;
}

std::string EncodeHello(const Hello& hello) {
  ByteWriter out;
  out.Put(Kind::kHello);
  out.Put(kMagic);
  out.Put(hello.version);
  out.Put(static_cast<uint32_t>(hello.wants_board ? 1 : 0));
  PutId(out, hello.from);
  PutId(out, hello.to);
  out.Put(hello.cell.address);
  out.PutRaw(Raw(hello.cell.token));
  return out.Take();
}

bool DecodeHello(std::string_view message, Hello* hello) {
  ByteReader in(message);
  if (in.Get<Kind>() != Kind::kHello || in.Get<uint32_t>() != kMagic) return false;
  hello->version = in.Get<uint32_t>();
  const auto board = in.Get<uint32_t>();
  hello->wants_board = board == 1;
  hello->from = GetId(in);
  hello->to = GetId(in);
  hello->cell.address = in.Get<uint64_t>();
  hello->cell.token = GetToken(in);
  return in.Done() && board <= 1;
}

std::string EncodeWelcome(const Welcome& welcome) {
  ByteWriter out;
  out.Put(Kind::kWelcome);
  out.Put(kMagic);
  out.Put(welcome.version);
  out.Put(welcome.cma_error);
  out.Put(static_cast<uint32_t>(welcome.code));
  PutId(out, welcome.id);
  out.Put(welcome.cell.address);
  out.PutRaw(Raw(welcome.cell.token));
  out.Put(welcome.clock);
  out.PutBytes(std::string_view(welcome.reason).substr(0, kReasonMax));
  return out.Take();
}

bool DecodeWelcome(std::string_view message, Welcome* welcome) {
  ByteReader in(message);
  if (in.Get<Kind>() != Kind::kWelcome || in.Get<uint32_t>() != kMagic) return false;
  welcome->version = in.Get<uint32_t>();
  welcome->cma_error = in.Get<int32_t>();
  const auto code = in.Get<uint32_t>();
  welcome->code = static_cast<Code>(code);
  welcome->id = GetId(in);
  welcome->cell.address = in.Get<uint64_t>();
  welcome->cell.token = GetToken(in);
  welcome->clock = in.Get<int64_t>();
  welcome->reason = in.GetBytes(kReasonMax);
  return in.Done() && code < static_cast<uint32_t>(kCodeCount);
}

size_t EncodeWrite(const Write& write, char* out) {
  MOONPOOL_CHECK(write.sources.size() <= kSourcesMax);
  MOONPOOL_CHECK(write.keys.size() <= kKeysMax);
  MOONPOOL_CHECK(write.pieces.size() <= kPiecesMax);
  WriteHead head;
  head.sources = static_cast<uint16_t>(write.sources.size());
  head.keys = static_cast<uint16_t>(write.keys.size());
  head.pieces = static_cast<uint32_t>(write.pieces.size());
  head.id = write.id;
  head.deadline = write.deadline;
  char* const begin = out;
  std::memcpy(out, &head, sizeof(head));
  out += sizeof(head);
  Append(out, write.sources);
  Append(out, write.keys);
  Append(out, write.pieces);
  return static_cast<size_t>(out - begin);
}

bool DecodeWrite(std::string_view message, Write* write) {
  WriteHead head;
  if (message.size() < sizeof(head)) return false;
  std::memcpy(&head, message.data(), sizeof(head));
  if (head.kind != Kind::kWrite || head.zero != 0) return false;
  if (head.sources > kSourcesMax || head.keys > kKeysMax || head.pieces > kPiecesMax) return false;
  if (head.keys == 0 || head.pieces == 0) return false;
  message.remove_prefix(sizeof(head));
  if (message.size() != head.sources * sizeof(WireSource) + head.keys * sizeof(RegionKey) +
                            head.pieces * sizeof(WirePiece)) {
    return false;
  }
  write->id = head.id;
  write->deadline = head.deadline;
  Take(message, head.sources, &write->sources);
  Take(message, head.keys, &write->keys);
  Take(message, head.pieces, &write->pieces);
  uint64_t bytes = 0;
  for (const WireSource& source : write->sources) {
    if (source.zero != 0) return false;
  }
  for (const WirePiece& piece : write->pieces) {
    if (piece.key >= head.keys) return false;
    if (piece.source != kNoSource && piece.source >= head.sources) return false;
    bytes += piece.size;
  }
  return bytes <= kSliceBytes;
}

bool DecodeReply(std::string_view message, Reply* reply) {
  if (message.size() != sizeof(Reply)) return false;
  std::memcpy(reply, message.data(), sizeof(Reply));
  return reply->kind == Kind::kReply && ValidCode(reply->code) &&
         reply->zero == std::array<uint8_t, 3>{};
}

bool DecodeArena(std::string_view message, ArenaMessage* arena) {
  if (message.size() != sizeof(ArenaMessage)) return false;
  std::memcpy(arena, message.data(), sizeof(ArenaMessage));
  return arena->kind == Kind::kGetArena || arena->kind == Kind::kArena ||
         arena->kind == Kind::kDropArena;
}

}  // namespace moonpool::local
