#pragma once

// EngineOwner: one engine with the clock and log that it borrows, as the Python objects share it
// (Engine, Region, Batch hold it by shared_ptr: whoever is last ends it). It knows the process that
// made it: in a forked child every use raises, and nothing is destroyed, because the engine's
// threads are not there.
//
// Not responsible for: the lifetime of registered Python objects (Region and moonpool.Engine).
//
// Threads: methods need the GIL unless they say otherwise.

#include <nanobind/nanobind.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/engine.h"

namespace moonpool::python {

struct EngineSettings {
  engine::Options options;
  std::string registry;  // URL; empty: none
  LogLevel log_level = LogLevel::kWarning;
};

class EngineOwner {
 public:
  // Raises what engine::Engine::Create or the registry reports.
  explicit EngineOwner(const EngineSettings& settings);
  ~EngineOwner();
  EngineOwner(const EngineOwner&) = delete;
  EngineOwner& operator=(const EngineOwner&) = delete;

  // Raises in a forked child.
  engine::Engine& engine();
  // True in the process that made the engine.
  bool here() const;
  bool closed() const { return closed_; }
  Duration timeout() const { return timeout_; }

  // Runs a call that can wait, without the GIL. On the main thread it runs on a thread of its own
  // while this one watches for signals; a call that a signal handler's exception abandons goes on
  // until its own deadline, and is joined when the engine ends.
  void Run(const std::function<void(engine::Engine&)>& call);

  // Idempotent; ends within the engine's bound.
  void Close();

  // Frees engine memory that nobody names any more; what is still in use is freed at a later call.
  void FreeLater(uint64_t address);
  void FreeWhatCan();

  // Memory that must not be stored into by reads (a read-only object was registered).
  void AddReadOnly(uint64_t address, uint64_t size);
  void RemoveReadOnly(uint64_t address);
  bool has_read_only() const { return !read_only_.empty(); }
  // True when [address, address + size) touches such memory.
  bool IsReadOnly(uint64_t address, uint64_t size) const;

 private:
  struct Call;

  const int process_;
  const Duration timeout_;
  SystemClock clock_;
  Logger log_;
  std::unique_ptr<engine::Engine> engine_;
  bool closed_ = false;
  std::map<uint64_t, uint64_t> read_only_;  // address -> size
  std::vector<uint64_t> to_free_;
  std::vector<Thread> abandoned_;
};

}  // namespace moonpool::python
