#pragma once

// The transport contract: what moves bytes between this process and a peer, and the promises that
// every leaf keeps and the conformance suite (transport/conformance.h) checks.
//
// A Transport serves this process's registered regions to peers and opens Peers of its own. A Lane
// is one posting and polling context. Requests go down by Post, results come up by Poll and by
// nothing else.
//
// 1. Exactly one completion per accepted slice.
// 2. A completion, ok or not, means that the transport has finished with the slice's memory on BOTH
// sides: not one
//    byte of either range is stored by this slice afterwards. A leaf that cannot be sure (a frozen
//    or unreachable owner of a write) completes the slice when it is: by the owner's word, or once
//    the slice's deadline has passed, which the owner enforces by base/fence.h on its own clock. So
//    no slice outlives its deadline by more than kSettleMax.
// 3. An owner touches memory only inside a region entered in memory::RegionTable with the rights
// needed.
// 4. Ok means that every byte is there, with the checksum verified where capabilities().checksum
// says so.
// 5. Nothing from a peer is trusted: malformed input closes that connection, and nothing else.
//
// Not responsible for: finding peers, splitting, choosing paths, retrying (the engine).
//
// Threads: Transport and Peer are thread-safe. A Lane is thread-bound: one thread at a time, handed
// over by the caller's own lock. Post and Poll do not block, allocate (but for growth to a bound)
// or log. Ownership: lanes and peers are destroyed before their transport; a peer after the last
// completion of its slices.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "memory/region.h"

namespace moonpool::memory {
class RegionTable;
class ArenaSet;
}  // namespace moonpool::memory

namespace moonpool::transport {

inline constexpr Duration kSettleMax = std::chrono::milliseconds(100);

enum class Op : uint8_t { kRead = 0, kWrite = 1 };  // seen from here
enum class Phase : uint8_t {
  kNone = 0,
  kResolve = 1,
  kConnect = 2,
  kHandshake = 3,
  kData = 4,
  kCommit = 5
};
std::string_view PhaseName(Phase phase);

struct Capabilities {
  bool same_host_only = false;
  bool checksum = false;           // payloads are verified end to end
  uint64_t slice_bytes = 1 << 20;  // what a slice should carry; the planner cuts to it
  uint32_t slice_pieces_max = 512;
  uint64_t bandwidth_estimate = 0;  // bytes per second, for ranking
  Duration latency_estimate{0};
};

// One contiguous range here and there.
struct Piece {
  uint64_t local = 0;   // address in this process
  uint64_t remote = 0;  // address in the owner
  uint32_t size = 0;    // bytes, 1 .. slice_bytes
  uint32_t key = 0;     // index into Slice::keys: the remote region that holds it
};

// What one path carries. Pieces and keys stay valid and unchanged until the completion. A slice that
// breaks these bounds is accepted and completes with kInvalidArgument, nothing touched.
struct Slice {
  uint64_t cookie = 0;  // comes back in the completion; unique among the lane's slices in flight
  Op op = Op::kRead;
  Time deadline = kNever;
  std::span<const Piece> pieces;    // 1 .. slice_pieces_max
  std::span<const RegionKey> keys;  // 1 .. slice_pieces_max
  uint64_t bytes = 0;               // the sum of the pieces, slice_bytes at most
};

struct Completion {
  uint64_t cookie = 0;
  Code code = Code::kOk;
  Phase phase = Phase::kNone;  // where it failed
};

// Who a process is: random, never an address. `incarnation` differs each time a process starts.
struct NodeId {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const NodeId&, const NodeId&) = default;
};

struct PeerOptions {
  std::string name;     // for messages
  NodeId id;            // a peer that answers with another id is kStale
  std::string host;     // the host (numeric address) at which its engine was reached
  std::string address;  // the blob of its transport's Address()
};

// A remote process as one transport reaches it.
class Peer {
 public:
  virtual ~Peer() = default;
  // The last failure with phase and cause, or ok. For messages.
  virtual Status last_error() const = 0;
};

class Lane {
 public:
  virtual ~Lane() = default;

  // Accepts the first slices, as many as it has room for, and returns how many (0 ..
  // slices.size()). What is not accepted is the caller's: post it again after Poll has returned
  // something.
  virtual size_t Post(Peer& peer, std::span<const Slice> slices) = 0;

  // Makes progress and returns completions, at most out.size(). `now` is the time at the call.
  virtual size_t Poll(std::span<Completion> out, Time now) = 0;

  // Best effort: the slice still completes, with kCancelled or whatever came first.
  virtual void Cancel(uint64_t cookie) = 0;

  // Closes what this lane has open to the peer; slices in flight complete as failed (rule 2 holds).
  virtual void Detach(Peer& peer) = 0;

  // For sleeping between polls: readable when Poll has something to do; and the time at which Poll
  // wants to be called whatever the descriptor says (a time that has passed: at once; kNever: no
  // wish). event_fd() is -1 where wake_by() alone tells (simulation).
  virtual int event_fd() const = 0;
  virtual Time wake_by() const = 0;

  // Slices accepted and not yet completed.
  virtual size_t in_flight() const = 0;
};

struct TransportMetrics {
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t slices_served = 0;
  uint64_t requests_refused = 0;      // by the region check
  uint64_t connections_open = 0;      // both directions
  uint64_t connections_rejected = 0;  // malformed, wrong version, over the bound
  uint64_t checksum_errors = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;  // constant, e.g. "tcp"
  virtual const Capabilities& capabilities() const = 0;
  // How peers reach this process: a versioned, opaque blob, up to 4 KiB.
  virtual std::string Address() const = 0;

  // May block until `deadline`. kUnsupported: this peer cannot be reached by this transport
  // (another host, refused by the kernel); the message says why. kUnavailable, kTimedOut, kStale:
  // reachable in principle.
  virtual Result<std::unique_ptr<Peer>> OpenPeer(const PeerOptions& options, Time deadline) = 0;
  virtual Result<std::unique_ptr<Lane>> OpenLane() = 0;

  // Stops serving and closes everything; after it returns no memory is touched for any peer.
  // Idempotent, within 1 s. Lanes still deliver the completions of their slices through Poll.
  virtual void Close() = 0;

  virtual TransportMetrics Metrics() const = 0;
};

struct TransportOptions {
  std::string bind_host;                              // numeric address to listen on; empty: all
  bool checksum = true;                               // CRC32C per slice, if the transport can
  int serving_threads = 2;                            // event threads for peers' requests
  uint32_t connections_max = 4096;                    // accepted; further ones are closed
  Duration spin_max = std::chrono::microseconds(50);  // longest busy wait before a sleep; 0: none
};

// What a leaf borrows; all outlive the transport.
struct Environment {
  Clock& clock;
  Logger& log;
  memory::RegionTable& regions;
  memory::ArenaSet& arenas;
  NodeId self;
};

// One per leaf, listed by the generated transport/builtin.h.
struct Factory {
  std::string name;
  // kUnsupported with the reason when it cannot work on this machine.
  std::function<Result<std::unique_ptr<Transport>>(const Environment&, const TransportOptions&)>
      create;
};

}  // namespace moonpool::transport
