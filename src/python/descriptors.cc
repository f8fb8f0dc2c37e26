#include "python/descriptors.h"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "base/str.h"
#include "python/errors.h"

namespace nb = nanobind;

namespace moonpool::python {
namespace {

// One letter for a native integer format of struct's notation, or 0.
char IntegerFormat(const char* format) {
  if (format == nullptr) return 0;
  std::string_view text = format;
  if (text.size() == 2 && std::string_view("@=<").find(text[0]) != std::string_view::npos)
    text.remove_prefix(1);
  if (text.size() != 1 || std::string_view("qQlLnNiIhH").find(text[0]) == std::string_view::npos)
    return 0;
  return text[0];
}

bool IsSigned(char format) { return format >= 'a'; }

}  // namespace

Descriptors::Descriptors(nb::handle object, const char* what) : what_(what) { Take(object.ptr()); }

void Descriptors::Take(PyObject* raw) {
  if (PyList_Check(raw)) return TakeList(raw);
  if (PyTuple_Check(raw)) return TakeTuple(raw);
  if (!PyLong_Check(raw) && PyObject_CheckBuffer(raw) && TakeArray(raw)) return;
  if (!PyIndex_Check(raw)) {
    PyErr_Format(PyExc_TypeError,
                 "%s: must be an int, a list or tuple of ints, or a one-dimensional array of "
                 "integers, not %s",
                 what_, Py_TYPE(raw)->tp_name);
    throw nb::python_error();
  }
  one_ = Number(raw, -1);
  span_ = {&one_, 1};
}

Descriptors::~Descriptors() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

uint64_t Descriptors::Number(PyObject* item, Py_ssize_t index) const {
  uint64_t value;
  if (PyLong_CheckExact(item)) {
    value = PyLong_AsUnsignedLongLong(item);
  } else {
    PyObject* const number = PyNumber_Index(item);
    if (number == nullptr) throw nb::python_error();
    value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
  }
  if (value == UINT64_MAX && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    const std::string place = index < 0 ? std::string() : Str("[", index, "]");
    RaiseInvalid(Str(what_, place, ": must be in 0 .. 2^64-1"));
  }
  return value;
}

void Descriptors::TakeList(PyObject* list) {
  const Py_ssize_t size = PyList_GET_SIZE(list);
  values_.resize(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    // An item's __index__ may have changed the list.
    if (i >= PyList_GET_SIZE(list))
      RaiseInvalid(Str(what_, ": the list changed while it was read"));
    PyObject* const item = PyList_GET_ITEM(list, i);
    Py_INCREF(item);
    const nb::object held = nb::steal(item);
    values_[static_cast<size_t>(i)] = Number(item, i);
  }
  span_ = values_;
}

void Descriptors::TakeTuple(PyObject* tuple) {
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple);
  values_.resize(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i)
    values_[static_cast<size_t>(i)] = Number(PyTuple_GET_ITEM(tuple, i), i);
  span_ = values_;
}

// False: not an array but a single number (a numpy scalar offers its bytes too).
bool Descriptors::TakeArray(PyObject* object) {
  if (PyObject_GetBuffer(object, &view_, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
    PyErr_Clear();
    view_.obj = nullptr;
    PyErr_Format(PyExc_TypeError, "%s: %s gives no plain array of integers", what_,
                 Py_TYPE(object)->tp_name);
    throw nb::python_error();
  }
  if (view_.ndim == 0 && PyIndex_Check(object)) {
    PyBuffer_Release(&view_);
    view_.obj = nullptr;
    return false;
  }
  if (view_.ndim != 1 || IntegerFormat(view_.format) == 0) {
    PyErr_Format(PyExc_TypeError,
                 "%s: must be a one-dimensional array of integers of 16 to 64 bits, not %d "
                 "dimensions of format '%s'",
                 what_, view_.ndim, view_.format == nullptr ? "B" : view_.format);
    // The destructor of a half-made object does not run.
    PyBuffer_Release(&view_);
    view_.obj = nullptr;
    throw nb::python_error();
  }
  try {
    TakeView();
  } catch (...) {
    PyBuffer_Release(&view_);
    view_.obj = nullptr;
    throw;
  }
  return true;
}

void Descriptors::TakeView() {
  const bool is_signed = IsSigned(IntegerFormat(view_.format));
  const auto count = static_cast<size_t>(view_.shape[0]);
  if (view_.itemsize == 8 && (view_.strides[0] == 8 || count <= 1) &&
      reinterpret_cast<uintptr_t>(view_.buf) % 8 == 0) {
    span_ = {static_cast<const uint64_t*>(view_.buf), count};
    uint64_t all = 0;
    if (is_signed)
      for (const uint64_t value : span_) all |= value;
    if ((all >> 63) != 0) RaiseInvalid(Str(what_, ": holds a negative number"));
    return;
  }
  switch (view_.itemsize) {
    case 8:
      return is_signed ? CopyView<int64_t>() : CopyView<uint64_t>();
    case 4:
      return is_signed ? CopyView<int32_t>() : CopyView<uint32_t>();
    default:
      return is_signed ? CopyView<int16_t>() : CopyView<uint16_t>();
  }
}

template <typename T>
void Descriptors::CopyView() {
  const auto count = static_cast<size_t>(view_.shape[0]);
  values_.resize(count);
  const char* from = static_cast<const char*>(view_.buf);
  for (size_t i = 0; i < count; ++i, from += view_.strides[0]) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    if constexpr (std::is_signed_v<T>)
      if (value < 0) RaiseInvalid(Str(what_, "[", i, "]: must not be negative"));
    values_[i] = static_cast<uint64_t>(value);
  }
  span_ = values_;
}

}  // namespace moonpool::python
