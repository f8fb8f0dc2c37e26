#include "python/engine_owner.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "python/errors.h"
#include "python/waiting.h"
#include "registry/builtin.h"
#include "registry/registry.h"
#include "transport/builtin.h"

namespace nb = nanobind;

namespace moonpool::python {

// A call that runs on a thread of its own, shared by that thread and the one that waits for it.
struct EngineOwner::Call {
  Mutex mutex;
  CondVar changed;
  bool ended MOONPOOL_GUARDED_BY(mutex) = false;
};

EngineOwner::EngineOwner(const EngineSettings& settings)
    : process_(::getpid()), timeout_(settings.options.timeout), log_(settings.log_level) {
  Result<std::unique_ptr<engine::Engine>> made = Status(Code::kInternal, "not made");
  {
    const nb::gil_scoped_release released;
    engine::World world{clock_, log_, transport::BuiltinFactories(), nullptr, nullptr, {}};
    Status status;
    if (!settings.registry.empty()) {
      const auto factories = registry::BuiltinFactories();
      auto registry = registry::Open(factories, {clock_, log_}, settings.registry);
      if (registry.ok())
        world.registry = std::move(registry).value();
      else
        status = registry.status();
    }
    made = status.ok() ? engine::Engine::Create(settings.options, std::move(world)) : status;
  }
  RaiseIfError(made.status());
  engine_ = std::move(made).value();
}

EngineOwner::~EngineOwner() {
  if (!here()) {
    // A forked child: the engine's threads do not exist here, so it cannot be ended. Left alone.
    (void)engine_.release();
    for (Thread& thread : abandoned_) (void)std::make_unique<Thread>(std::move(thread)).release();
    return;
  }
  const nb::gil_scoped_release released;
  engine_->Close();
  abandoned_.clear();
  engine_.reset();
}

bool EngineOwner::here() const { return ::getpid() == process_; }

engine::Engine& EngineOwner::engine() {
  if (!here())
    Raise(Status(Code::kUnsupported,
                 "this engine belongs to the parent process: make a new one after a fork"));
  return *engine_;
}

void EngineOwner::Run(const std::function<void(engine::Engine&)>& call) {
  engine::Engine& target = engine();
  if (!OnMainThread()) {
    const nb::gil_scoped_release released;
    call(target);
    return;
  }
  const auto state = std::make_shared<Call>();
  Thread thread("python-call", [state, call, &target](const std::stop_token&) {
    call(target);
    const MutexLock lock(state->mutex);
    state->ended = true;
    state->changed.NotifyAll();
  });
  try {
    WaitInSlices(kAsLongAsItTakes, [&](Duration slice) {
      const MutexLock lock(state->mutex);
      if (!state->ended) state->changed.WaitFor(state->mutex, slice);
      return state->ended;
    });
  } catch (nb::python_error&) {
    bool ended;
    {
      const MutexLock lock(state->mutex);
      ended = state->ended;
    }
    if (!ended) abandoned_.push_back(std::move(thread));
    throw;
  }
}

void EngineOwner::Close() {
  if (closed_ || !here()) return;
  closed_ = true;
  const nb::gil_scoped_release released;
  engine_->Close();
}

void EngineOwner::FreeLater(uint64_t address) {
  if (closed_ || !here()) return;  // the engine's end frees it
  to_free_.push_back(address);
  FreeWhatCan();
}

void EngineOwner::FreeWhatCan() {
  if (to_free_.empty() || closed_) return;
  std::erase_if(to_free_, [this](uint64_t address) {
    const Status status = engine_->Free(reinterpret_cast<void*>(address), Duration(1));
    return status.code() != Code::kTimedOut;
  });
}

void EngineOwner::AddReadOnly(uint64_t address, uint64_t size) { read_only_[address] = size; }

void EngineOwner::RemoveReadOnly(uint64_t address) { read_only_.erase(address); }

bool EngineOwner::IsReadOnly(uint64_t address, uint64_t size) const {
  const auto after = read_only_.upper_bound(address);
  if (after != read_only_.end() && after->first - address < size) return true;
  if (after == read_only_.begin()) return false;
  const auto before = std::prev(after);
  return address - before->first < before->second;
}

}  // namespace moonpool::python
