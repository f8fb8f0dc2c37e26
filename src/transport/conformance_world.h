#pragma once

// The vocabulary of the conformance suite: nodes, their buffers, and the slices in flight between them.
// Private to the suite (conformance*.cc).
//
// Threads: thread-bound, but for Node::transport(). Ownership: a World outlives its nodes' buffers, peers
// and flights.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "memory/arena.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "testing/log_collector.h"
#include "testing/patience.h"
#include "testing/pattern.h"
#include "testing/shared_memory.h"
#include "transport/conformance.h"
#include "transport/transport.h"

namespace moonpool::transport::conformance {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FillPattern;
using testing::Patience;
using testing::PatternErrors;

class World;

// One process's worth of a transport.
class Node {
 public:
  Node(World& world, std::string name, NodeId id);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  NodeId id() const { return id_; }
  memory::RegionTable& regions() { return regions_; }
  memory::ArenaSet& arenas() { return arenas_; }
  testing::LogCollector& lines() { return lines_; }
  Transport& transport() { return *transport_; }
  Lane& lane() { return *lane_; }  // the node's first lane
  Time In(Duration span) const;    // from now
  // How others reach it.
  PeerOptions address() const;
  // A peer of this node. Fails the test and returns null when it cannot be opened.
  std::unique_ptr<Peer> Open(const PeerOptions& options);
  std::unique_ptr<Peer> Open(const Node& other) { return Open(other.address()); }

 private:
  World& world_;
  const std::string name_;
  const NodeId id_;
  testing::LogCollector lines_;
  Logger log_;
  memory::RegionTable regions_;
  memory::ArenaSet arenas_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Lane> lane_;
};

enum class Kind { kPlain, kShared, kArena };  // private pages, a memfd nobody knows of, an arena

struct BufferOptions {
  size_t size = 4096;
  Rights rights = Rights::kReadWrite;
  Kind kind = Kind::kPlain;
  size_t margin = 0;  // bytes at both ends that are mapped, but not registered
};

// Registered memory of a node.
class Buffer {
 public:
  Buffer(Node& node, const BufferOptions& options);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }
  size_t size() const { return size_; }
  const RegionInfo& info() const { return info_; }
  RegionKey key() const { return info_.key; }
  int fd() const;  // of the pages, or -1

  void Fill(uint64_t seed) { FillPattern(data_, size_, seed); }
  std::string Errors(uint64_t seed) const { return PatternErrors(data_, size_, seed); }
  Status Deregister();
  void Register();  // again, under a new key
  // Takes the pages away from `offset` on; the range stays reserved, so that nothing else is mapped there.
  void Unmap(size_t offset);

 private:
  Node& node_;
  const BufferOptions options_;
  size_t size_;
  std::byte* data_ = nullptr;
  std::unique_ptr<testing::SharedMemory> shared_;
  std::shared_ptr<memory::Arena> arena_;
  uint32_t arena_number_ = kNoArena;
  RegionInfo info_;
  bool registered_ = false;
};

// A slice with what it points to.
struct Request {
  Peer* peer = nullptr;
  Op op = Op::kRead;
  Time deadline = kNever;
  std::vector<Piece> pieces;
  std::vector<RegionKey> keys;
  std::optional<uint64_t> bytes;  // absent: the sum of the pieces
};

// A range here and there, for Flight::Bulk.
struct Range {
  Op op = Op::kRead;
  uint64_t local = 0;
  uint64_t remote = 0;
  RegionKey key;
  uint64_t size = 0;
  Time deadline = kNever;
};

// Posts slices on a lane and accounts for every completion: each accepted cookie once, none other. All
// completions of the lane must come through its one Flight.
class Flight {
 public:
  Flight(World& world, Node& node) : Flight(world, node, node.lane()) {}
  Flight(World& world, Node& node, Lane& lane);
  ~Flight();  // fails the test when a slice is in flight
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  // Queues a slice; returns its cookie.
  uint64_t Add(Request request);
  // Queues a range, cut into slices of the transport's size; returns how many.
  size_t Bulk(Peer& peer, const Range& range);
  // One slice of one piece, run to its end.
  Code Run(Peer& peer, const Range& range);
  // The same, again and again until it is ok: for what follows a broken connection.
  bool RunUntilOk(Peer& peer, const Range& range);

  // Posts what the lane takes and polls once. True when something happened.
  bool Pump();
  // Pumps until everything queued has completed. False (and a failed test) when it has not in time.
  bool Finish(Duration timeout = Patience());
  // Pumps for `span`, whatever happens.
  void PumpFor(Duration span);
  // Gives up what was queued and not yet accepted.
  void Drop();

  const Completion* Find(uint64_t cookie) const;
  Code code(uint64_t cookie) const;  // kInternal with a failed test when it has not completed
  size_t Count(Code code) const;
  size_t completed() const { return done_.size(); }
  size_t posted() const { return posted_; }
  const std::map<uint64_t, Completion>& completions() const { return done_; }
  std::vector<uint64_t> InFlight() const;

 private:
  World& world_;
  Node& node_;
  Lane& lane_;
  struct Entry {
    Request request;
    Slice slice;
  };
  std::map<uint64_t, std::unique_ptr<Entry>> entries_;  // queued or in flight, by cookie
  std::deque<uint64_t> queue_;                          // not yet accepted
  std::map<uint64_t, Completion> done_;
  uint64_t next_ = 1;
  size_t posted_ = 0;
};

class World {
 public:
  explicit World(const Params& params, std::string instance);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Params& params() const { return params_; }
  const std::string& instance() const { return instance_; }  // the name given to the macro
  Ground& ground() { return *ground_; }
  Time Now() { return ground_->clock().Now(); }
  Time In(Duration span) { return After(Now(), span); }
  Node& Add(std::string name);
  Node& Add(std::string name, NodeId id);
  void Pass(Duration span);
  // Lets time pass until `done`; false when it is not in time.
  bool Until(const std::function<bool()>& done, Duration timeout = Patience());
  // Set before the first node.
  TransportOptions& options() { return params_.options; }

 private:
  Params params_;
  const std::string instance_;
  std::unique_ptr<Ground> ground_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

NodeId RandomId();

// Two nodes, a peer from `here` to `there`, and buffers of one size in both.
struct Pair {
  Pair(World& world, const BufferOptions& options);
  Range Whole(Op op, Time deadline = kNever) const;

  Node& here;
  Node& there;
  Buffer local;
  Buffer remote;
  std::unique_ptr<Peer> peer;
  Flight flight;
};

struct Case {
  const char* name;
  void (*body)(World& world);
};
std::span<const Case> DataCases();      // conformance_data.cc
std::span<const Case> EndingCases();    // conformance_ending.cc
std::span<const Case> RegionCases();    // conformance_regions.cc
std::span<const Case> DeadlineCases();  // conformance_deadlines.cc
std::span<const Case> PeerCases();      // conformance_peers.cc
std::span<const Case> ProcessCases();   // conformance_process.cc
// The bodies of the children that ProcessCases start.
void RegisterChildren(const std::string& instance, const std::function<Params()>& make);

inline constexpr Op kOps[] = {Op::kRead, Op::kWrite};

}  // namespace moonpool::transport::conformance
