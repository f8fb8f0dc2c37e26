#pragma once

// What an engine is made with, and the values that its calls take and give. Threads: values.

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moonpool::engine {

struct Options {
  // host:port to listen on for peers. Empty host: every address of the machine. Port 0: the kernel
  // picks, the socket is kept. The port asked for is the port bound, or Create fails.
  std::string listen = ":0";
  // The host that peers are told. Empty: the listen host when it is specific, else the address of
  // the first interface that is up and not loopback, else 127.0.0.1.
  std::string advertise_host;
  // The segment's name in the registry. Empty: the address.
  std::string name;
  // Transports that may be used, in no order. Empty: all that work here, the best for each peer
  // chosen. A list is binding: a name that does not exist or does not work here makes Create fail.
  std::vector<std::string> transports;
  int workers = 2;          // posting contexts, each with a lane per transport; 1 .. 16
  int serving_threads = 2;  // per transport, for peers' requests; 1 .. 64
  bool checksum = true;     // CRC32C per slice where the transport can
  Duration spin_max = std::chrono::microseconds(50);  // longest busy wait; 0: always sleep
  Duration timeout = std::chrono::seconds(30);        // of a batch or call that names none
  Duration retry_window = std::chrono::seconds(1);    // how long an unreachable peer is tried again
  Duration lease = std::chrono::seconds(10);          // of the registry's entry
  uint32_t batches_max = 65536;                       // live batches
  uint32_t notifications_max = 4096;                  // received and not yet taken
};
inline constexpr size_t kNotificationBytesMax = size_t{64} * 1024;
inline constexpr uint64_t kDescriptorsMax = 4'000'000;              // per batch
inline constexpr uint64_t kDescriptorBytesMax = uint64_t{1} << 37;  // 128 GiB

using SegmentHandle = uint64_t;  // index and generation; checked; never 0
using BatchHandle = uint64_t;    // the same

enum class Priority : uint8_t { kLatency = 0, kBulk = 1 };

// Transfers with one segment: descriptor i moves lengths[i] bytes between local[i] and remote[i].
struct Group {
  SegmentHandle segment = 0;
  transport::Op op = transport::Op::kRead;
  std::span<const uint64_t> local;    // addresses in this process, in registered regions
  std::span<const uint64_t> remote;   // addresses in the peer's process
  std::span<const uint64_t> lengths;  // bytes, 1 .. kDescriptorBytesMax
};

struct BatchRequest {
  std::span<const Group> groups;  // at least one descriptor in all, kDescriptorsMax at most
  Duration timeout{0};            // 0: Options::timeout
  Priority priority = Priority::kBulk;
  // With notify, `payload` is delivered to every segment of the batch once all its data is there.
  bool notify = false;
  std::string payload;        // kNotificationBytesMax at most
  bool to_queue = false;      // report completion through Engine::NextCompleted
  bool wait_follows = false;  // the caller calls Wait at once: saves waking a worker
};

struct BatchStatus {
  bool done = false;
  Status status;  // when done: ok, or what failed first
  uint64_t bytes_total = 0;
  uint64_t bytes_done = 0;  // moved so far
  uint32_t retries = 0;     // slices sent again
  std::string transport;    // the transports used, joined by "+"
  // Of the first failure:
  std::string peer;
  std::string failed_transport;
  transport::Phase phase = transport::Phase::kNone;
};

struct Notification {
  std::string sender;  // the sender's segment name
  std::string payload;
};

struct SegmentInfo {
  std::string name;     // as opened
  std::string address;  // host:port of its engine
  transport::NodeId id;
  std::string transport;            // chosen path, empty if none is open
  std::string reason;               // why it was chosen or why others were not
  std::vector<RegionInfo> regions;  // by address
};

struct TransportInfo {
  std::string name;
  bool usable = false;
  std::string reason;  // why not
  transport::TransportMetrics metrics;
};

struct Info {
  std::string name;
  std::string address;
  transport::NodeId id;
  bool fence_exact = false;
  std::vector<TransportInfo> transports;
  std::vector<SegmentInfo> segments;  // opened, without their regions
  uint64_t regions = 0;
  uint64_t batches_live = 0;
  uint64_t batches_completed = 0;
  uint64_t batches_failed = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t retries = 0;
  uint64_t notifications_dropped = 0;
};

}  // namespace moonpool::engine
