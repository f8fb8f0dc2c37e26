#pragma once

// The registry server's state: names, values, leases, owners. A deterministic machine: every
// operation takes the time as an argument; there is no thread, clock or lock inside.
//
// 1. entries() and bytes() never exceed the bounds; what would exceed them is kExhausted and
//    changes nothing.
// 2. An entry with a lease is gone once its lease has run out, whether Tick has swept it or not.
// 3. Versions only grow, over all names: an entry that comes back has a higher one.
// 4. A server that was itself stalled does not expire others for it: when Tick was not called for
//    more than kStallMin, all leases are longer by as long as it was away.
//
// Not responsible for: HTTP (registry/server.h).
// Threads: thread-compatible.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "registry/registry.h"

namespace moonpool::registry {

struct TableBounds {
  size_t entries_max = 100'000;
  size_t bytes_max = 256u << 20;  // names and values together
};

class Table {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(200);  // how often to call Tick
  static constexpr Duration kStallMin = std::chrono::seconds(1);
  static constexpr OwnerToken kNoOwner = 0;  // of entries that the plain dialect stored

  explicit Table(const TableBounds& bounds) : bounds_(bounds) {}

  struct PutRequest {
    std::string_view name{};
    std::string_view value{};
    OwnerToken owner = kNoOwner;
    Duration lease = Duration::max();  // the largest: never runs out
    bool if_absent = false;            // kAlreadyExists when another owner has the name
  };
  // The new entry's version.
  Result<uint64_t> Put(const PutRequest& request, Time now);
  Result<Entry> Get(std::string_view name, Time now);
  // kNotFound: no such entry (any more); kStale: another owner has it.
  Status Renew(std::string_view name, OwnerToken owner, Duration lease, Time now);
  Status Remove(std::string_view name, OwnerToken owner, Time now);
  // Whoever the owner is. kNotFound.
  Status RemoveAny(std::string_view name, Time now);
  std::vector<std::string> List(std::string_view prefix, size_t count_max, Time now);

  // Sweeps what has expired. Call it every kTick.
  void Tick(Time now);

  size_t entries() const { return records_.size(); }  // with those not swept yet
  size_t bytes() const { return bytes_; }

 private:
  struct Record {
    std::string value;
    uint64_t version = 0;
    OwnerToken owner = kNoOwner;
    Time expires = kNever;
  };
  using Records = std::map<std::string, Record, std::less<>>;

  void Erase(Records::iterator it);
  void CatchUp(Time now);  // rule 4, before an operation
  Records::iterator FindLive(std::string_view name, Time now);

  const TableBounds bounds_;
  Records records_;
  size_t bytes_ = 0;
  uint64_t last_version_ = 0;
  Time last_tick_{};  // Time{}: neither a tick nor an operation yet
};

}  // namespace moonpool::registry
