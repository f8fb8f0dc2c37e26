#pragma once

// RegionTable: which memory of this process takes part in transfers, and the check of every access
// to it.
//
// Two kinds of user. The engine registers and deregisters, and pins local regions for the life of a
// batch. A transport that serves a peer enters a region around each bounded step that touches its
// memory (one non-blocking system call or one piece of a copy), and leaves after; deregistration
// closes the region (nobody enters any more), then waits until those inside have left, so that
// after Deregister returns nothing touches the memory on behalf of a peer.
//
// Not responsible for: allocating (memory/arena.h), telling peers (the engine's descriptor).
//
// Threads: thread-safe. Enter/Leave take no lock (but for the last to leave a region that is being
// deregistered, who wakes the waiter). Finding a region is O(log n).
// Costs: under 200 bytes per region; 100,000 registrations in well under a second.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "memory/region.h"

namespace moonpool::memory {

struct RegisterOptions {
  uint64_t address = 0;  // not null
  uint64_t size = 0;     // bytes, 1 at least, no wrap
  Rights rights = Rights::kReadWrite;
  uint32_t arena = kNoArena;
  uint64_t arena_offset = 0;
};

// How many are inside a region, its generation and whether it is open, in one word.
struct RegionSlot;

// Told of every change, under the table's lock: must be quick, and must not call the table.
class RegionObserver {
 public:
  virtual ~RegionObserver() = default;
  virtual void RegionOpened(const RegionInfo& info) = 0;
  // Nobody may enter any more; Deregister waits, and returns only afterwards. May be followed by
  // RegionOpened with the same key (Deregister timed out).
  virtual void RegionClosed(const RegionInfo& info) = 0;
};

class RegionTable {
 public:
  explicit RegionTable(Clock& clock);
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // kInvalidArgument: null, empty or wrapping. kAlreadyExists: overlaps a registered region (named
  // in the message). kExhausted: more than kRegionsMax.
  Result<RegionInfo> Register(const RegisterOptions& options);

  // Closes the region that begins at `address`, waits until nobody is inside and no batch pins it,
  // forgets it. kNotFound: no region begins there. kAgain: another call is deregistering it.
  // kTimedOut: still pinned or entered at `deadline`; the region is open again.
  Status Deregister(uint64_t address, Time deadline);

  // The region that holds all of [address, address + size), if one does.
  std::optional<RegionInfo> Find(uint64_t address, uint64_t size) const;

  // All open regions by address, and the number of the table's last change (grows whenever a region
  // opens or closes).
  std::vector<RegionInfo> Snapshot(uint64_t* version) const;
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  size_t size() const;

  // Owner's side: enters the region that `key` names for [address, address + size) with the rights
  // needed. On kOk the caller must Leave(key) after its step. kStale: no such registration (any
  // more); kInvalidArgument: outside the region, wraps, or not allowed. size 0 is kInvalidArgument.
  // No lock, no allocation.
  Code Enter(const RegionKey& key, uint64_t address, uint64_t size, Rights need);
  // Enters by key only; the caller checks ranges against `info` itself (for many pieces of one
  // region).
  Code Enter(const RegionKey& key, Rights need, RegionInfo* info);
  void Leave(const RegionKey& key);

  // Initiator's side: a batch pins each local region it uses until it has completed. Same rules as
  // Enter, no rights.
  Code Pin(const RegionKey& key) { return Enter(key, Rights::kNone, nullptr); }
  void Unpin(const RegionKey& key) { Leave(key); }

  // Tells `observer` of every open region at once and of every change from now on, until it is
  // removed.
  void AddObserver(RegionObserver& observer);
  void RemoveObserver(RegionObserver& observer);

  static constexpr uint32_t kRegionsMax = 1u << 22;

 private:
  RegionSlot* SlotAt(uint32_t index) const;
  Result<uint32_t> TakeSlot() MOONPOOL_REQUIRES(mutex_);
  Status CheckFree(const RegisterOptions& options) const MOONPOOL_REQUIRES(mutex_);
  bool WaitUntilEmpty(const RegionSlot& slot, Time deadline) MOONPOOL_REQUIRES(mutex_);

  static constexpr uint32_t kSlotsPerChunk = 4096;
  static constexpr uint32_t kChunks = kRegionsMax / kSlotsPerChunk;

  Clock& clock_;
  std::atomic<uint64_t> version_{0};
  // Chunks are published with release, read with acquire in SlotAt, and freed only by the
  // destructor.
  std::unique_ptr<std::atomic<RegionSlot*>[]> chunks_;
  mutable Mutex mutex_;
  CondVar left_;  // notified by the last to leave a closed region
  std::map<uint64_t, uint32_t> by_address_ MOONPOOL_GUARDED_BY(mutex_);  // first byte -> slot
  std::vector<uint32_t> free_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<RegionObserver*> observers_ MOONPOOL_GUARDED_BY(mutex_);
  uint32_t slots_ MOONPOOL_GUARDED_BY(mutex_) = 0;  // ever used
};

}  // namespace moonpool::memory
