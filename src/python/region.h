#pragma once

// Region as Python sees it: registered memory, or memory that the engine allocated, offered through
// the buffer protocol.
//
// Lifetime: a registration lasts until close() or the engine's end, whether or not the object is
// kept; moonpool.Engine holds the object, and the object holds the owner of the memory. Memory that
// the engine allocated is freed when the object and every buffer of it are gone. close() while a
// buffer is exported raises BufferError, so that no view outlives its memory. Threads: needs the
// GIL.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "memory/region.h"
#include "python/engine_owner.h"

namespace moonpool::python {

class Region {
 public:
  struct Memory {
    uint64_t address = 0;
    uint64_t size = 0;
    Rights rights = Rights::kNone;
    bool allocated = false;  // by the engine
    bool read_only = false;  // the registered object may not be written
  };

  Region(std::shared_ptr<EngineOwner> owner, const Memory& memory, nanobind::object keeps);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const Memory& memory() const { return memory_; }
  bool open() const;
  const nanobind::object& keeps() const { return keeps_; }

  // Idempotent. Raises BufferError while exported, TimedOut while a batch uses it.
  void Close(const std::optional<double>& timeout);
  // The same without waiting for Python's signals, for many at once; the GIL may be released.
  Status CloseNow(engine::Engine& engine, Duration timeout) const;
  void MarkClosed();
  void CheckClosable() const;

  int GetBuffer(PyObject* self, Py_buffer* view, int flags);
  void ReleaseBuffer() { --exports_; }
  void Clear() { keeps_.reset(); }

 private:
  const std::shared_ptr<EngineOwner> owner_;
  const Memory memory_;
  nanobind::object keeps_;  // what holds the memory, or null
  int exports_ = 0;
  bool closed_ = false;
};

// "r", "w" or "rw"; raises InvalidArgument for others.
Rights ParseRights(const std::string& text);
const char* RightsText(Rights rights);

void BindRegion(nanobind::module_& module);

// Memory of a Python object that offers the buffer protocol or DLPack, and what keeps it. Raises
// InvalidArgument when it is not contiguous host memory, or not writable although the rights let
// peers write.
struct BorrowedMemory {
  uint64_t address = 0;
  uint64_t size = 0;
  bool read_only = false;
  nanobind::object keeps;
};
BorrowedMemory Borrow(nanobind::handle object, Rights rights);

}  // namespace moonpool::python
