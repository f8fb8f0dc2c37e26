#include "transport/fake/map.h"

namespace moonpool::fake {

Node* Map::Find(uint64_t node) {
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? nullptr : &it->second;
}

const Node* Map::Find(uint64_t node) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? nullptr : &it->second;
}

Node* Map::Live(uint64_t node, uint64_t incarnation) {
  Node* found = Find(node);
  return found && found->regions && found->incarnation == incarnation ? found : nullptr;
}

const Link& Map::LinkOf(uint64_t from, uint64_t to) const {
  const auto it = links_.find({from, to});
  return it == links_.end() ? usual_ : it->second;
}

void Map::SetParted(uint64_t a, uint64_t b, bool parted) {
  const Pair pair{std::min(a, b), std::max(a, b)};
  if (parted) {
    parted_.insert(pair);
  } else {
    parted_.erase(pair);
  }
}

}  // namespace moonpool::fake
