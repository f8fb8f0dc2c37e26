#include "memory/region_table.h"

#include <algorithm>

#include "base/random.h"
#include "base/str.h"

namespace moonpool::memory {
namespace {

// The slot's word: generation in the upper half, the open bit, how many are inside.
constexpr uint64_t kInsideMask = 0x7fffffff;
constexpr uint64_t kOpen = 0x80000000;
constexpr int kGenerationShift = 32;
constexpr uint32_t kGenerationLast = 0xffffffff;

// Deregister looks this often before it sleeps: a step of a transport takes microseconds.
constexpr int kSpins = 200;
// A sleep between looks at the (perhaps simulated) clock.
constexpr Duration kWait = std::chrono::milliseconds(1);

uint32_t Generation(uint64_t word) { return static_cast<uint32_t>(word >> kGenerationShift); }
uint64_t Word(uint32_t generation) { return uint64_t{generation} << kGenerationShift; }

}  // namespace

// Invariants:
// 1. Only Register writes the fields below the word, while the slot is closed and empty; the store
//    of the open bit (release) publishes them to whoever enters (acquire).
// 2. Entering is one compare-and-swap from "this generation, open": nobody enters a closed slot.
// 3. The generation grows when a closed slot is found empty, before the slot is used again: a key
//    of an earlier registration never matches.
struct alignas(64) RegionSlot {
  std::atomic<uint64_t> word{Word(1)};
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t access_key = 0;
  uint64_t arena_offset = 0;
  uint32_t arena = kNoArena;
  Rights rights = Rights::kNone;

  bool open() const { return (word.load(std::memory_order_relaxed) & kOpen) != 0; }
  RegionInfo Info(uint32_t index) const {
    const uint32_t generation = Generation(word.load(std::memory_order_relaxed));
    return {address, size, rights, {index, generation, access_key}, arena, arena_offset};
  }
};

RegionTable::RegionTable(Clock& clock)
    : clock_(clock), chunks_(std::make_unique<std::atomic<RegionSlot*>[]>(kChunks)) {}

RegionTable::~RegionTable() {
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const std::unique_ptr<RegionSlot[]> slots(chunks_[chunk].load(std::memory_order_relaxed));
    if (slots == nullptr) break;
    for (uint32_t i = 0; i < kSlotsPerChunk; ++i) {
      const bool empty = (slots[i].word.load(std::memory_order_acquire) & kInsideMask) == 0;
      MOONPOOL_CHECK(empty);  // a batch or a transport still uses a region
    }
  }
}

RegionSlot* RegionTable::SlotAt(uint32_t index) const {
  if (index >= kRegionsMax) return nullptr;
  RegionSlot* chunk = chunks_[index / kSlotsPerChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + index % kSlotsPerChunk;
}

Result<uint32_t> RegionTable::TakeSlot() {
  if (!free_.empty()) {
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  if (slots_ == kRegionsMax) {
    return Status(Code::kExhausted, Str("all ", kRegionsMax, " regions are in use"));
  }
  if (slots_ % kSlotsPerChunk == 0) {
    chunks_[slots_ / kSlotsPerChunk].store(std::make_unique<RegionSlot[]>(kSlotsPerChunk).release(),
                                           std::memory_order_release);
  }
  return slots_++;
}

Status RegionTable::CheckFree(const RegisterOptions& options) const {
  const auto next = by_address_.lower_bound(options.address);
  const RegionSlot* clash = nullptr;
  if (next != by_address_.end() && next->first - options.address < options.size) {
    clash = SlotAt(next->second);
  } else if (next != by_address_.begin()) {
    const RegionSlot* before = SlotAt(std::prev(next)->second);
    if (options.address - before->address < before->size) clash = before;
  }
  if (clash == nullptr) return Status::Ok();
  return Status(Code::kAlreadyExists, Str("memory [0x", std::hex, options.address, ", +0x",
                                          options.size, ") overlaps the registered region [0x",
                                          clash->address, ", +0x", clash->size, ")"));
}

Result<RegionInfo> RegionTable::Register(const RegisterOptions& options) {
  if (options.address == 0) return Status(Code::kInvalidArgument, "address: null");
  if (options.size == 0) return Status(Code::kInvalidArgument, "size: 0, must be at least 1");
  if (options.size - 1 > UINT64_MAX - options.address) {
    return Status(Code::kInvalidArgument, Str("size: ", options.size, " from address 0x", std::hex,
                                              options.address, " wraps 64 bits"));
  }
  if (static_cast<uint8_t>(options.rights) > static_cast<uint8_t>(Rights::kReadWrite)) {
    return Status(Code::kInvalidArgument,
                  Str("rights: ", static_cast<int>(options.rights),
                      ", must be none (0), read (1), write (2) or both (3)"));
  }
  const uint64_t access_key = SecureUint64();
  MutexLock lock(mutex_);
  MOONPOOL_RETURN_IF_ERROR(CheckFree(options));
  MOONPOOL_ASSIGN_OR_RETURN(const uint32_t index, TakeSlot());
  RegionSlot* slot = SlotAt(index);
  slot->address = options.address;
  slot->size = options.size;
  slot->access_key = access_key;
  slot->arena_offset = options.arena_offset;
  slot->arena = options.arena;
  slot->rights = options.rights;
  by_address_.emplace(options.address, index);
  slot->word.fetch_or(kOpen, std::memory_order_release);  // pairs with the swap in Enter
  version_.fetch_add(1, std::memory_order_release);
  const RegionInfo info = slot->Info(index);
  for (RegionObserver* observer : observers_) observer->RegionOpened(info);
  return info;
}

bool RegionTable::WaitUntilEmpty(const RegionSlot& slot, Time deadline) {
  for (int spin = 0;; ++spin) {
    // Pairs with Leave: what those inside did comes before what our caller does next.
    if ((slot.word.load(std::memory_order_acquire) & kInsideMask) == 0) return true;
    if (spin < kSpins) continue;
    const Time now = clock_.Now();
    if (now >= deadline) return false;
    left_.WaitFor(mutex_, std::min(kWait, deadline - now));
  }
}

Status RegionTable::Deregister(uint64_t address, Time deadline) {
  MutexLock lock(mutex_);
  const auto it = by_address_.find(address);
  if (it == by_address_.end()) {
    return Status(Code::kNotFound, Str("no region begins at 0x", std::hex, address));
  }
  const uint32_t index = it->second;
  RegionSlot* slot = SlotAt(index);
  if (!slot->open()) {
    return Status(Code::kAgain, Str("the region at 0x", std::hex, address,
                                    " is being deregistered by another call"));
  }
  slot->word.fetch_and(~kOpen, std::memory_order_acq_rel);
  version_.fetch_add(1, std::memory_order_release);
  const RegionInfo info = slot->Info(index);
  for (RegionObserver* observer : observers_) observer->RegionClosed(info);
  if (!WaitUntilEmpty(*slot, deadline)) {
    slot->word.fetch_or(kOpen, std::memory_order_release);
    version_.fetch_add(1, std::memory_order_release);
    for (RegionObserver* observer : observers_) observer->RegionOpened(info);
    return Status(Code::kTimedOut, Str("the region at 0x", std::hex, address,
                                       " is still used by transfers in flight"));
  }
  by_address_.erase(address);
  const uint32_t generation = Generation(slot->word.load(std::memory_order_relaxed));
  // A slot that has used up its generations is never used again.
  if (generation == kGenerationLast) return Status::Ok();
  slot->word.store(Word(generation + 1), std::memory_order_release);
  free_.push_back(index);
  return Status::Ok();
}

void RegionTable::AddObserver(RegionObserver& observer) {
  MutexLock lock(mutex_);
  observers_.push_back(&observer);
  for (const auto& [address, index] : by_address_) {
    const RegionSlot* slot = SlotAt(index);
    if (slot->open()) observer.RegionOpened(slot->Info(index));
  }
}

void RegionTable::RemoveObserver(RegionObserver& observer) {
  MutexLock lock(mutex_);
  std::erase(observers_, &observer);
}

std::optional<RegionInfo> RegionTable::Find(uint64_t address, uint64_t size) const {
  if (size == 0) return std::nullopt;
  MutexLock lock(mutex_);
  const auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return std::nullopt;
  const uint32_t index = std::prev(after)->second;
  const RegionSlot* slot = SlotAt(index);
  if (!slot->open() || !RangeInside(address, size, slot->address, slot->size)) return std::nullopt;
  return slot->Info(index);
}

std::vector<RegionInfo> RegionTable::Snapshot(uint64_t* version) const {
  MutexLock lock(mutex_);
  std::vector<RegionInfo> all;
  all.reserve(by_address_.size());
  for (const auto& [address, index] : by_address_) {
    const RegionSlot* slot = SlotAt(index);
    if (slot->open()) all.push_back(slot->Info(index));
  }
  if (version != nullptr) *version = version_.load(std::memory_order_relaxed);
  return all;
}

size_t RegionTable::size() const {
  MutexLock lock(mutex_);
  return by_address_.size();
}

Code RegionTable::Enter(const RegionKey& key, uint64_t address, uint64_t size, Rights need) {
  RegionInfo info;
  const Code code = Enter(key, need, &info);
  if (code != Code::kOk) return code;
  if (size != 0 && RangeInside(address, size, info.address, info.size)) return Code::kOk;
  Leave(key);
  return Code::kInvalidArgument;
}

Code RegionTable::Enter(const RegionKey& key, Rights need, RegionInfo* info) {
  RegionSlot* slot = SlotAt(key.slot);
  if (slot == nullptr) return Code::kStale;
  uint64_t word = slot->word.load(std::memory_order_relaxed);
  do {
    if (Generation(word) != key.generation || (word & kOpen) == 0) return Code::kStale;
    if ((word & kInsideMask) == kInsideMask) return Code::kExhausted;
    // Acquire pairs with the release in Register: the fields are this generation's.
  } while (!slot->word.compare_exchange_weak(word, word + 1, std::memory_order_acquire,
                                             std::memory_order_relaxed));
  Code code = Code::kOk;
  if (slot->access_key != key.access_key) {
    code = Code::kStale;
  } else if (!Allows(slot->rights, need)) {
    code = Code::kInvalidArgument;
  }
  if (code != Code::kOk) {
    Leave(key);
  } else if (info != nullptr) {
    *info = {slot->address, slot->size, slot->rights, key, slot->arena, slot->arena_offset};
  }
  return code;
}

void RegionTable::Leave(const RegionKey& key) {
  RegionSlot* slot = SlotAt(key.slot);
  MOONPOOL_CHECK(slot != nullptr);
  // Release pairs with the look of WaitUntilEmpty.
  const uint64_t before = slot->word.fetch_sub(1, std::memory_order_release);
  MOONPOOL_CHECK(Generation(before) == key.generation);
  MOONPOOL_CHECK((before & kInsideMask) != 0);
  if ((before & kOpen) != 0 || (before & kInsideMask) != 1) return;
  // Locked, so that the waiter either sees the word or is already waiting.
  MutexLock lock(mutex_);
  left_.NotifyAll();
}

}  // namespace moonpool::memory
