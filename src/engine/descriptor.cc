#include "engine/descriptor.h"

#include "base/bytes.h"
#include "base/str.h"
#include "engine/options.h"

namespace moonpool::engine {
namespace {

constexpr uint32_t kDescriptorMagic = 0x3144534d;  // "MSD1"
constexpr uint32_t kNotifyMagic = 0x314e534d;      // "MSN1"
constexpr size_t kRegionBytes = 8 + 8 + 1 + 4 + 4 + 8 + 4 + 8;
constexpr size_t kBlobBytesMax = 4096;

void PutId(ByteWriter& out, const transport::NodeId& id) {
  out.Put(id.node);
  out.Put(id.incarnation);
}

transport::NodeId GetId(ByteReader& in) {
  transport::NodeId id;
  id.node = in.Get<uint64_t>();
  id.incarnation = in.Get<uint64_t>();
  return id;
}

RegionInfo GetRegion(ByteReader& in) {
  RegionInfo region;
  region.address = in.Get<uint64_t>();
  region.size = in.Get<uint64_t>();
  region.rights = static_cast<Rights>(in.Get<uint8_t>());
  region.key.slot = in.Get<uint32_t>();
  region.key.generation = in.Get<uint32_t>();
  region.key.access_key = in.Get<uint64_t>();
  region.arena = in.Get<uint32_t>();
  region.arena_offset = in.Get<uint64_t>();
  return region;
}

Status CheckRegion(const RegionInfo& region, uint64_t previous_end) {
  if (static_cast<uint8_t>(region.rights) > 3)
    return Status(Code::kCorrupt, "region with unknown rights");
  if (region.size == 0) return Status(Code::kCorrupt, "region of 0 bytes");
  if (region.address > UINT64_MAX - region.size)
    return Status(Code::kCorrupt, "region wraps 64 bits");
  if (region.address < previous_end)
    return Status(Code::kCorrupt, "regions overlap or are out of order");
  return Status::Ok();
}

Status CheckMagic(ByteReader& in, uint32_t magic, std::string_view what) {
  const auto got = in.Get<uint32_t>();
  if (!in.ok()) return Status(Code::kCorrupt, Str(what, " is too short"));
  if (got == magic) return Status::Ok();
  if ((got & 0x00ffffff) == (magic & 0x00ffffff)) {
    return Status(Code::kUnsupported,
                  Str(what, " has format version '", static_cast<char>(got >> 24),
                      "'; this build reads '", static_cast<char>(magic >> 24), "'"));
  }
  return Status(Code::kCorrupt, Str(what, " does not begin with its magic"));
}

}  // namespace

std::string EncodeDescriptor(const SegmentDescriptor& descriptor) {
  ByteWriter out;
  out.Put(kDescriptorMagic);
  out.PutBytes(descriptor.name);
  PutId(out, descriptor.id);
  out.Put(descriptor.version);
  out.Put(static_cast<uint32_t>(descriptor.transports.size()));
  for (const TransportAddress& address : descriptor.transports) {
    out.PutBytes(address.name);
    out.PutBytes(address.blob);
  }
  out.Put(static_cast<uint32_t>(descriptor.regions.size()));
  for (const RegionInfo& region : descriptor.regions) {
    out.Put(region.address);
    out.Put(region.size);
    out.Put(region.rights);
    out.Put(region.key.slot);
    out.Put(region.key.generation);
    out.Put(region.key.access_key);
    out.Put(region.arena);
    out.Put(region.arena_offset);
  }
  return out.Take();
}

Result<SegmentDescriptor> DecodeDescriptor(std::string_view bytes) {
  ByteReader in(bytes);
  MOONPOOL_RETURN_IF_ERROR(CheckMagic(in, kDescriptorMagic, "segment descriptor"));
  SegmentDescriptor descriptor;
  descriptor.name = in.GetBytes(kNameBytesMax);
  descriptor.id = GetId(in);
  descriptor.version = in.Get<uint64_t>();
  const auto transports = in.Get<uint32_t>();
  if (transports > kDescriptorTransportsMax) {
    return Status(Code::kCorrupt, Str("segment descriptor names ", transports,
                                      " transports; allowed 0 .. ", kDescriptorTransportsMax));
  }
  for (uint32_t i = 0; i < transports && in.ok(); ++i) {
    TransportAddress address;
    address.name = in.GetBytes(kNameBytesMax);
    address.blob = in.GetBytes(kBlobBytesMax);
    descriptor.transports.push_back(std::move(address));
  }
  const auto regions = in.Get<uint32_t>();
  if (!in.ok() || in.remaining() != regions * kRegionBytes) {
    return Status(Code::kCorrupt, "segment descriptor is cut short or has bytes after its end");
  }
  descriptor.regions.reserve(regions);
  uint64_t end = 0;
  for (uint32_t i = 0; i < regions; ++i) {
    const RegionInfo region = GetRegion(in);
    MOONPOOL_RETURN_IF_ERROR(
        CheckRegion(region, end).WithContext(Str("segment descriptor, region ", i)));
    end = region.address + region.size;
    descriptor.regions.push_back(region);
  }
  return descriptor;
}

std::string EncodeNotify(const NotifyMessage& message) {
  ByteWriter out;
  out.Put(kNotifyMagic);
  PutId(out, message.sender_id);
  out.Put(message.sequence);
  PutId(out, message.receiver_id);
  out.PutBytes(message.sender);
  out.PutBytes(message.payload);
  return out.Take();
}

Result<NotifyMessage> DecodeNotify(std::string_view bytes) {
  ByteReader in(bytes);
  MOONPOOL_RETURN_IF_ERROR(CheckMagic(in, kNotifyMagic, "notification"));
  NotifyMessage message;
  message.sender_id = GetId(in);
  message.sequence = in.Get<uint64_t>();
  message.receiver_id = GetId(in);
  message.sender = in.GetBytes(kNameBytesMax);
  message.payload = in.GetBytes(kNotificationBytesMax);
  if (!in.Done())
    return Status(Code::kCorrupt, "notification is cut short, too long or has bytes after its end");
  return message;
}

}  // namespace moonpool::engine
