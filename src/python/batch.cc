#include "python/batch.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "base/str.h"
#include "python/errors.h"
#include "python/waiting.h"

namespace nb = nanobind;

namespace moonpool::python {
namespace {

int Traverse(PyObject* self, visitproc visit, void* arg) noexcept {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<Batch>(self)->engine().ptr());
  return 0;
}

int Clear(PyObject* self) noexcept {
  if (nb::inst_ready(self)) nb::inst_ptr<Batch>(self)->Clear();
  return 0;
}

const PyType_Slot kBatchSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                                   {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                                   {0, nullptr}};

nb::object TextOrNone(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.c_str(), text.size()));
}

const char* State(const engine::BatchStatus& status) {
  if (!status.done) return "running";
  return status.status.ok() ? "done" : "failed";
}

void BindStatus(nb::module_& module) {
  using engine::BatchStatus;
  nb::class_<BatchStatus>(module, "BatchStatus",
                          "What a batch has done so far, or how it ended. A value.")
      .def_ro("done", &BatchStatus::done, "Nothing of the batch touches memory any more.")
      .def_prop_ro(
          "ok", [](const BatchStatus& self) { return self.done && self.status.ok(); },
          "Done, and every byte is there.")
      .def_prop_ro(
          "code", [](const BatchStatus& self) { return std::string(CodeName(self.status.code())); },
          "\"ok\", or what failed first, e.g. \"timed_out\".")
      .def_prop_ro(
          "message", [](const BatchStatus& self) { return TextOrNone(self.status.message()); },
          nb::sig("def message(self) -> str | None"), "Of the first failure, or None.")
      .def_ro("bytes_total", &BatchStatus::bytes_total, "Bytes to move.")
      .def_ro("bytes_done", &BatchStatus::bytes_done, "Bytes moved so far.")
      .def_ro("retries", &BatchStatus::retries, "Slices sent again.")
      .def_ro("transport", &BatchStatus::transport, "The transports used, joined by \"+\".")
      .def_prop_ro(
          "peer", [](const BatchStatus& self) { return TextOrNone(self.peer); },
          nb::sig("def peer(self) -> str | None"), "Of the first failure, or None.")
      .def_prop_ro(
          "failed_transport",
          [](const BatchStatus& self) { return TextOrNone(self.failed_transport); },
          nb::sig("def failed_transport(self) -> str | None"), "Of the first failure, or None.")
      .def_prop_ro(
          "phase",
          [](const BatchStatus& self) {
            return self.phase == transport::Phase::kNone
                       ? nb::none()
                       : nb::object(nb::str(std::string(PhaseName(self.phase)).c_str()));
          },
          nb::sig("def phase(self) -> str | None"),
          "resolve, connect, handshake, data or commit, of the first failure; or None.")
      .def("__repr__", [](const BatchStatus& self) {
        return Str("<moonpool.BatchStatus ", State(self), " ", self.bytes_done, " of ",
                   self.bytes_total, " bytes>");
      });
}

}  // namespace

engine::Priority ParsePriority(const std::string& text) {
  if (text == "bulk") return engine::Priority::kBulk;
  if (text == "latency") return engine::Priority::kLatency;
  RaiseInvalid(Str("priority: must be \"bulk\" or \"latency\", not \"", text, "\""));
}

Batch::Batch(std::shared_ptr<EngineOwner> owner, const Origin& origin, nb::object engine)
    : owner_(std::move(owner)),
      handle_(origin.handle),
      queued_(origin.queued),
      engine_(std::move(engine)) {}

Batch::~Batch() {
  if (status_.done || !owner_->here()) return;
  // Still running, or never looked at: cancelled and forgotten.
  (void)owner_->engine().Release(handle_);
}

void Batch::Settle(engine::BatchStatus status) {
  if (status_.done) return;  // another thread was here first
  status_ = std::move(status);
  if (status_.done) (void)owner_->engine().Release(handle_);
}

const engine::BatchStatus& Batch::Look() {
  if (status_.done) return status_;
  Result<engine::BatchStatus> polled = owner_->engine().Poll(handle_);
  if (!polled.ok()) {
    // The engine forgets its batches when it ends.
    engine::BatchStatus ended = status_;
    ended.done = true;
    ended.status = polled.code() == Code::kCancelled
                       ? polled.status()
                       : Status(Code::kCancelled, "the engine was closed");
    Settle(std::move(ended));
  } else {
    Settle(std::move(polled).value());
  }
  return status_;
}

void Batch::RaiseIfFailed() const {
  RaiseIfError(status_.status, {status_.peer, status_.failed_transport, status_.phase});
}

bool Batch::Done() { return Look().done; }

void Batch::Wait(const std::optional<double>& timeout) {
  const Duration limit = Seconds(timeout, "timeout");
  if (!status_.done) {
    engine::Engine& engine = owner_->engine();
    // A batch that ended and one that still runs can both say "timed out": Look tells them apart.
    WaitInSlices(limit, [&](Duration slice) {
      if (engine.Wait(handle_, slice).code() != Code::kTimedOut) return true;
      const Result<engine::BatchStatus> polled = engine.Poll(handle_);
      return !polled.ok() || polled->done;
    });
    if (!Look().done)
      Raise(Status(Code::kTimedOut, Str("the batch is still running after ", *timeout, " s")));
  }
  RaiseIfFailed();
}

void Batch::Cancel() {
  if (!status_.done) (void)owner_->engine().Cancel(handle_);
}

void BindBatch(nb::module_& module) {
  BindStatus(module);
  nb::class_<Batch>(
      module, "Batch", nb::type_slots(kBatchSlots), nb::is_weak_referenceable(),
      "Transfers under way, from Engine.write, Engine.read or Engine.submit.\n\n"
      "Once it is done, ok or not, nothing of it touches memory on either side. Dropping a\n"
      "batch that still runs cancels it. Thread-safe. `await batch` waits in an asyncio event\n"
      "loop, without a thread, and gives the batch; cancelling the awaiting task cancels it.")
      .def(
          "wait",
          [](nb::object self, const std::optional<double>& timeout) {
            nb::cast<Batch&>(self).Wait(timeout);
            return self;
          },
          nb::arg("timeout") = nb::none(),
          nb::sig("def wait(self, timeout: float | None = None) -> Batch"),
          "Waits until the batch is done and returns it; raises its error if it failed. None: as\n"
          "long as its own deadline lets it run. After `timeout` seconds raises TimedOut; the "
          "batch\n"
          "then goes on (see done()). Signal handlers run at least every 0.1 s.")
      .def("done", &Batch::Done, "True once the batch has ended, ok or not. Never waits.")
      .def("cancel", &Batch::Cancel,
           "Asks the batch to end; it does so soon, and by its deadline at the latest, with\n"
           "Cancelled unless it was quicker. Never waits.")
      .def(
          "status", [](Batch& self) { return self.Look(); }, "A snapshot. Never waits.")
      .def_prop_ro(
          "transport", [](Batch& self) { return self.Look().transport; },
          "The transports used so far, joined by \"+\".")
      .def_prop_ro(
          "bytes", [](Batch& self) { return self.Look().bytes_done; }, "Bytes moved so far.")
      .def_prop_ro("_queued", [](const Batch& self) { return self.queued(); })
      .def_prop_ro("_handle", [](const Batch& self) { return self.handle(); })
      .def_prop_ro(
          "_engine", [](const Batch& self) { return self.engine(); },
          nb::sig("def _engine(self) -> typing.Any"))
      .def(
          "__await__",
          [](nb::object self) {
            return nb::module_::import_("moonpool._completions")
                .attr("wait")(self)
                .attr("__await__")();
          },
          nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, None, Batch]"))
      .def("__repr__", [](Batch& self) {
        const engine::BatchStatus& status = self.Look();
        return Str("<moonpool.Batch ", State(status), " ", status.bytes_done, " of ",
                   status.bytes_total, " bytes>");
      });
}

}  // namespace moonpool::python
