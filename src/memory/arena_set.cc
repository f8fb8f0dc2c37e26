#include "memory/arena_set.h"

#include <utility>

#include "memory/region.h"

namespace moonpool::memory {

uint32_t ArenaSet::Add(std::shared_ptr<const Arena> arena) {
  MOONPOOL_CHECK(arena != nullptr);
  MutexLock lock(mutex_);
  MOONPOOL_CHECK(next_ != kNoArena);
  const uint32_t number = next_++;
  arenas_.emplace(number, std::move(arena));
  return number;
}

void ArenaSet::Remove(uint32_t number) {
  std::shared_ptr<const Arena> last;  // unmapped after the lock is released
  MutexLock lock(mutex_);
  const auto it = arenas_.find(number);
  if (it == arenas_.end()) return;
  last = std::move(it->second);
  arenas_.erase(it);
}

std::shared_ptr<const Arena> ArenaSet::Get(uint32_t number) const {
  MutexLock lock(mutex_);
  const auto it = arenas_.find(number);
  return it == arenas_.end() ? nullptr : it->second;
}

std::optional<ArenaSet::Place> ArenaSet::Find(uint64_t address, uint64_t size) const {
  MutexLock lock(mutex_);
  for (const auto& [number, arena] : arenas_) {
    const auto base = reinterpret_cast<uint64_t>(arena->data());
    if (RangeInside(address, size, base, arena->size())) return Place{number, address - base};
  }
  return std::nullopt;
}

}  // namespace moonpool::memory
