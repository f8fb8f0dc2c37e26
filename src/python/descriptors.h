#pragma once

// Descriptors: the addresses or lengths of a batch as a span of 64-bit numbers, from what Python
// gives: one int, a list or tuple of ints, a one-dimensional array of integers (numpy, array.array;
// 64-bit contiguous ones are used in place, not copied), or any sequence of ints.
//
// Ownership: an array is held (exported) for the object's life. Threads: made and destroyed with
// the GIL; span() may be read without it.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <vector>

namespace moonpool::python {

class Descriptors {
 public:
  // `what` names the argument in errors: "local", "remote", "lengths". Raises TypeError for what
  // holds no integers, InvalidArgument for a number that does not fit.
  Descriptors(nanobind::handle object, const char* what);
  ~Descriptors();
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  std::span<const uint64_t> span() const { return span_; }

 private:
  uint64_t Number(PyObject* item, Py_ssize_t index) const;
  void Take(PyObject* raw);
  void TakeList(PyObject* list);
  void TakeTuple(PyObject* tuple);
  bool TakeArray(PyObject* object);
  void TakeView();
  template <typename T>
  void CopyView();

  const char* const what_;
  Py_buffer view_{};  // held while view_.obj is not null
  uint64_t one_ = 0;
  std::vector<uint64_t> values_;
  std::span<const uint64_t> span_;
};

}  // namespace moonpool::python
