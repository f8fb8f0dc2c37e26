#include "python/region.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "base/str.h"
#include "python/errors.h"
#include "python/waiting.h"

namespace nb = nanobind;

namespace moonpool::python {
namespace {

int GetBuffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  return nb::inst_ptr<Region>(self)->GetBuffer(self, view, flags);
}

void ReleaseBuffer(PyObject* self, Py_buffer*) noexcept {
  nb::inst_ptr<Region>(self)->ReleaseBuffer();
}

int Traverse(PyObject* self, visitproc visit, void* arg) noexcept {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<Region>(self)->keeps().ptr());
  return 0;
}

const PyType_Slot kRegionSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)},
                                    {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
                                    {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                                    {0, nullptr}};

BorrowedMemory BorrowBuffer(nb::handle object, Rights rights) {
  // A memoryview keeps the buffer exported: a bytearray, for instance, cannot move while it exists.
  const nb::object view = nb::steal(PyMemoryView_FromObject(object.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  const Py_buffer* const buffer = PyMemoryView_GET_BUFFER(view.ptr());
  if (PyBuffer_IsContiguous(buffer, 'A') == 0)
    RaiseInvalid("the buffer is not contiguous: register the array that it is a view of");
  if (buffer->len == 0) RaiseInvalid("size: the buffer is empty");
  if (buffer->readonly != 0 && Allows(rights, Rights::kWrite))
    RaiseInvalid("the buffer is read-only: register it with rights \"r\"");
  return {reinterpret_cast<uint64_t>(buffer->buf), static_cast<uint64_t>(buffer->len),
          buffer->readonly != 0, view};
}

template <typename Array>
std::optional<BorrowedMemory> BorrowArray(nb::handle object, bool read_only) {
  Array array;
  if (!nb::try_cast<Array>(nb::borrow(object), array)) return std::nullopt;
  constexpr int kCpu = nb::device::cpu::value, kCudaHost = 3, kRocmHost = 11;
  const int device = array.device_type();
  if (device != kCpu && device != kCudaHost && device != kRocmHost)
    Raise(Status(Code::kUnsupported,
                 Str("DLPack device type ", device, ": only host memory can be registered")));
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected)
      RaiseInvalid("the tensor is not contiguous: register the tensor that it is a view of");
    expected *= static_cast<int64_t>(array.shape(i));
  }
  if (array.nbytes() == 0) RaiseInvalid("size: the tensor is empty");
  // The array's own object would be a copy for some frameworks; a capsule keeps the memory itself.
  auto held = std::make_unique<Array>(array);
  const nb::object keeps = nb::capsule(held.get(), [](void* pointer) noexcept {
    std::unique_ptr<Array>(static_cast<Array*>(pointer)).reset();
  });
  (void)held.release();
  return BorrowedMemory{reinterpret_cast<uint64_t>(array.data()), array.nbytes(), read_only, keeps};
}

}  // namespace

BorrowedMemory Borrow(nb::handle object, Rights rights) {
  if (PyObject_CheckBuffer(object.ptr())) return BorrowBuffer(object, rights);
  if (nb::hasattr(object, "__dlpack__")) {
    if (auto memory = BorrowArray<nb::ndarray<>>(object, false)) return *memory;
    if (auto memory = BorrowArray<nb::ndarray<nb::ro>>(object, true)) {
      if (Allows(rights, Rights::kWrite))
        RaiseInvalid("the tensor is read-only: register it with rights \"r\"");
      return *memory;
    }
    RaiseInvalid("the object's __dlpack__ gives no tensor that can be read here");
  }
  PyErr_Format(PyExc_TypeError,
               "memory: must be an int address with size, or offer the buffer protocol or "
               "DLPack; %s does not",
               Py_TYPE(object.ptr())->tp_name);
  throw nb::python_error();
}

Rights ParseRights(const std::string& text) {
  if (text == "rw" || text == "wr") return Rights::kReadWrite;
  if (text == "r") return Rights::kRead;
  if (text == "w") return Rights::kWrite;
  if (text.empty()) return Rights::kNone;
  RaiseInvalid(Str("rights: must be \"r\", \"w\", \"rw\" or \"\", not \"", text, "\""));
}

const char* RightsText(Rights rights) {
  switch (rights) {
    case Rights::kNone:
      return "";
    case Rights::kRead:
      return "r";
    case Rights::kWrite:
      return "w";
    case Rights::kReadWrite:
      return "rw";
  }
  return "";
}

Region::Region(std::shared_ptr<EngineOwner> owner, const Memory& memory, nb::object keeps)
    : owner_(std::move(owner)), memory_(memory), keeps_(std::move(keeps)) {}

Region::~Region() {
  if (memory_.allocated && !closed_) owner_->FreeLater(memory_.address);
}

bool Region::open() const { return !closed_ && !owner_->closed(); }

void Region::CheckClosable() const {
  if (exports_ == 0) return;
  PyErr_SetString(PyExc_BufferError,
                  "the region's buffer is in use: drop its memoryviews and arrays first");
  throw nb::python_error();
}

Status Region::CloseNow(engine::Engine& engine, Duration timeout) const {
  void* const address = reinterpret_cast<void*>(memory_.address);
  return memory_.allocated ? engine.Free(address, timeout) : engine.Deregister(address, timeout);
}

void Region::MarkClosed() {
  closed_ = true;
  if (memory_.read_only) owner_->RemoveReadOnly(memory_.address);
  keeps_.reset();
}

void Region::Close(const std::optional<double>& timeout) {
  if (!open()) return;
  CheckClosable();
  const Duration limit = timeout.has_value() ? Seconds(timeout, "timeout") : owner_->timeout();
  engine::Engine& engine = owner_->engine();
  Status status;
  const auto ends = [&](Duration slice) {
    status = CloseNow(engine, std::max(slice, Duration(1)));
    return status.code() != Code::kTimedOut;
  };
  WaitInSlices(limit, ends);
  RaiseIfError(status);
  MarkClosed();
}

int Region::GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  if (closed_ || !owner_->here()) {
    PyErr_SetString(PyExc_BufferError,
                    closed_ ? "the region is closed" : "the region belongs to the parent process");
    view->obj = nullptr;
    return -1;
  }
  const int failed =
      PyBuffer_FillInfo(view, self, reinterpret_cast<void*>(memory_.address),
                        static_cast<Py_ssize_t>(memory_.size), memory_.read_only ? 1 : 0, flags);
  if (failed == 0) ++exports_;
  return failed;
}

void BindRegion(nb::module_& module) {
  nb::class_<Region>(
      module, "Region", nb::type_slots(kRegionSlots), nb::is_weak_referenceable(),
      nb::sig("class Region(typing_extensions.Buffer)"),
      "Memory that takes part in transfers, from Engine.register or Engine.allocate.\n\n"
      "Offers the buffer protocol (memoryview(region), numpy.frombuffer(region)). A\n"
      "registration lasts until close() or Engine.close(), also when this object is dropped;\n"
      "memory from Engine.allocate is freed when the object and all its buffers are gone.\n"
      "Thread-safe; a context manager that closes.")
      .def_prop_ro(
          "address", [](const Region& self) { return self.memory().address; },
          "Address of the first byte in this process.")
      .def_prop_ro(
          "size", [](const Region& self) { return self.memory().size; }, "Size in bytes.")
      .def_prop_ro(
          "rights", [](const Region& self) { return RightsText(self.memory().rights); },
          "What peers may do: \"r\", \"w\", \"rw\" or \"\".")
      .def_prop_ro(
          "closed", [](const Region& self) { return !self.open(); },
          "True after close() or Engine.close().")
      .def("close", &Region::Close, nb::arg("timeout") = nb::none(),
           "Ends the registration, or frees the memory. Waits for batches that use it for up to\n"
           "`timeout` seconds (None: the engine's timeout), then raises TimedOut. Raises "
           "BufferError\n"
           "while a buffer of it is in use. Idempotent.")
      .def("__len__", [](const Region& self) { return self.memory().size; })
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Region"))
      .def(
          "__exit__", [](Region& self, const nb::args&) { self.Close(std::nullopt); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const Region& self) {
        std::ostringstream out;
        out << "<moonpool.Region 0x" << std::hex << self.memory().address << std::dec << " size "
            << self.memory().size << " rights '" << RightsText(self.memory().rights) << "'"
            << (self.open() ? "" : " closed") << ">";
        return out.str();
      });
}

}  // namespace moonpool::python
