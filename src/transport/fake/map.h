#pragma once

// Map: the nodes of a Network, the links between them, and what is wrong with each. Private to this folder.
// Threads: thread-compatible; guarded by the core's mutex. References to nodes stay valid.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "transport/fake/network.h"
#include "transport/transport.h"

namespace moonpool::fake {

using transport::Completion;

// What a Lane object is to the core. Guarded by the core's mutex.
struct LaneState {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  size_t in_flight = 0;           // accepted, not yet returned by Poll
  std::vector<uint32_t> flights;  // of them, those still under way
  std::deque<Completion> ready;   // and those that wait for Poll
};

struct Node {
  uint64_t incarnation = 0;
  memory::RegionTable* regions = nullptr;  // null: not there
  bool silent = false;                     // not there, and nothing answers for it
  bool frozen = false;
  bool refusing = false;
  uint32_t corrupt_next = 0;
  Time sends_until{};     // its network card is busy sending
  Time receives_until{};  // and receiving
  transport::TransportMetrics metrics;
  std::vector<LaneState*> lanes;
};

class Map {
 public:
  explicit Map(const Link& usual) : usual_(usual) {}

  Node& At(uint64_t node) { return nodes_[node]; }  // made when first named
  Node* Find(uint64_t node);
  const Node* Find(uint64_t node) const;
  // The node if it is there, as that incarnation.
  Node* Live(uint64_t node, uint64_t incarnation);

  const Link& LinkOf(uint64_t from, uint64_t to) const;
  void SetLink(uint64_t from, uint64_t to, const Link& link) { links_[{from, to}] = link; }
  bool Parted(uint64_t a, uint64_t b) const {
    return parted_.contains({std::min(a, b), std::max(a, b)});
  }
  void SetParted(uint64_t a, uint64_t b, bool parted);

 private:
  using Pair = std::pair<uint64_t, uint64_t>;
  struct PairHash {
    size_t operator()(const Pair& pair) const {
      return pair.first * 0x9e3779b97f4a7c15u ^ pair.second;
    }
  };

  const Link usual_;
  std::unordered_map<uint64_t, Node> nodes_;
  std::unordered_map<Pair, Link, PairHash> links_;
  std::unordered_set<Pair, PairHash> parted_;
};

}  // namespace moonpool::fake
