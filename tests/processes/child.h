#pragma once

// The vocabulary of these tests: a Remote is an engine in a process of its own whose memory this process sees too.
//
// Threads: thread-bound.

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/child_process.h"
#include "testing/patience.h"
#include "testing/shared_memory.h"

namespace moonpool::processes {

inline Duration Long() { return testing::Patience(std::chrono::seconds(20)); }

struct RemoteOptions {
  std::string transport;  // empty: automatic
  std::string listen = "127.0.0.1:0";
  size_t bytes = 1 << 20;
};

// An engine in a child; `memory` is registered there at `base`, and seen here.
class Remote {
 public:
  explicit Remote(const RemoteOptions& options);
  const std::string& address() const { return address_; }
  uint64_t at(uint64_t offset) const { return base_ + offset; }
  uint8_t* memory() const { return reinterpret_cast<uint8_t*>(shared_.data()); }
  testing::ChildProcess& child() { return child_; }

  // Lets the child write `bytes` from its memory's start to `remote` of the engine at `to`, over and over with `timeout`,
  // until a batch fails or ends after its time. The answer comes through WaitForEnd.
  void StartWriting(const std::string& to, uint64_t remote, uint64_t bytes, Duration timeout);
  std::string WaitForEnd();  // the last status' text

 private:
  testing::SharedMemory shared_;
  testing::ChildProcess child_;
  std::string address_;
  uint64_t base_ = 0;
};

// An engine in this process.
struct Local {
  explicit Local(const std::string& transport, size_t bytes = 1 << 20,
                 const std::string& listen = "127.0.0.1:0");
  uint64_t at(uint64_t offset) const { return region.address + offset; }
  uint8_t* memory() const { return reinterpret_cast<uint8_t*>(region.address); }
  // Opens `address`; fails the test if it cannot.
  engine::SegmentHandle Open(const std::string& address);
  // One batch of one descriptor from start to end.
  Status Move(engine::SegmentHandle segment, transport::Op op, std::vector<uint64_t> range,
              Duration timeout);
  Status Write(engine::SegmentHandle segment, uint64_t from, uint64_t to, uint64_t bytes,
               Duration timeout = Long()) {
    return Move(segment, transport::Op::kWrite, {from, to, bytes}, timeout);
  }

  SystemClock clock;
  Logger log{LogLevel::kError};
  std::unique_ptr<engine::Engine> engine;
  RegionInfo region;
};

}  // namespace moonpool::processes
