#pragma once

// ArenaSet: the shareable arenas of this process by number, so that a region can say in which one
// it lies and a transport can hand the arena's descriptor to a peer of the same host. Threads:
// thread-safe. An arena handed out is kept alive by its shared_ptr (shared with transports that
// export it).

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "memory/arena.h"

namespace moonpool::memory {

class ArenaSet {
 public:
  struct Place {
    uint32_t arena;
    uint64_t offset;
  };

  // Numbers are never used twice.
  uint32_t Add(std::shared_ptr<const Arena> arena);
  void Remove(uint32_t number);
  std::shared_ptr<const Arena> Get(uint32_t number) const;  // null: no such arena
  // The arena that holds [address, address + size), if one does.
  std::optional<Place> Find(uint64_t address, uint64_t size) const;

 private:
  mutable Mutex mutex_;
  uint32_t next_ MOONPOOL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, std::shared_ptr<const Arena>> arenas_ MOONPOOL_GUARDED_BY(mutex_);
};

}  // namespace moonpool::memory
