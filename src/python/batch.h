#pragma once

// Batch as Python sees it: a batch of transfers under way, and its outcome once it is done. The
// engine's handle is released as soon as the outcome has been seen, or with the object.
// Ownership: holds the Python engine, and through it the registered memory. Threads: needs the GIL.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "python/engine_owner.h"

namespace moonpool::python {

// What every submission can say besides its descriptors.
struct SubmitOptions {
  std::optional<double> timeout;  // seconds; none: the engine's
  engine::Priority priority = engine::Priority::kBulk;
  std::optional<std::string> notify;
  bool to_queue = false;
  bool wait_follows = false;
};

class Batch {
 public:
  struct Origin {
    engine::BatchHandle handle = 0;
    bool queued = false;  // completion is reported through the engine's queue
  };

  Batch(std::shared_ptr<EngineOwner> owner, const Origin& origin, nanobind::object engine);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  engine::BatchHandle handle() const { return handle_; }
  bool queued() const { return queued_; }
  const nanobind::object& engine() const { return engine_; }
  void Clear() { engine_.reset(); }

  // Raises the batch's error, or TimedOut when it is still running after `timeout` seconds.
  void Wait(const std::optional<double>& timeout);
  bool Done();
  void Cancel();
  const engine::BatchStatus& Look();  // refreshed unless done
  void RaiseIfFailed() const;         // Requires: done

 private:
  // Notes the outcome and lets the engine forget the batch.
  void Settle(engine::BatchStatus status);

  const std::shared_ptr<EngineOwner> owner_;
  const engine::BatchHandle handle_;
  const bool queued_;
  nanobind::object engine_;
  engine::BatchStatus status_;  // final when status_.done
};

// "bulk" or "latency"; raises InvalidArgument for others.
engine::Priority ParsePriority(const std::string& text);

void BindBatch(nanobind::module_& module);

}  // namespace moonpool::python
