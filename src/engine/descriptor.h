#pragma once

// SegmentDescriptor: what a process says of itself to peers that open it: who it is, how each transport reaches it, and
// its regions. Wire format: docs/formats/segment-descriptor.md. Decoding trusts nothing: every count and length is
// bounded, regions are non-empty, in order and do not overlap.
// Threads: values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moonpool::engine {

struct TransportAddress {
  std::string name;
  std::string blob;
};

struct SegmentDescriptor {
  std::string name;
  transport::NodeId id;
  uint64_t version = 0;  // of the regions; grows with each change
  std::vector<TransportAddress> transports;
  std::vector<RegionInfo> regions;  // by address
};

inline constexpr uint32_t kDescriptorTransportsMax = 64;
inline constexpr uint32_t kNameBytesMax = 1024;

std::string EncodeDescriptor(const SegmentDescriptor& descriptor);
// kUnsupported: another format version; kCorrupt: anything else wrong, with what.
Result<SegmentDescriptor> DecodeDescriptor(std::string_view bytes);

struct NotifyMessage {
  transport::NodeId sender_id;
  uint64_t sequence = 0;          // unique among the sender's notifications
  transport::NodeId receiver_id;  // another incarnation refuses it
  std::string sender;
  std::string payload;
};
std::string EncodeNotify(const NotifyMessage& message);
Result<NotifyMessage> DecodeNotify(std::string_view bytes);

}  // namespace moonpool::engine
