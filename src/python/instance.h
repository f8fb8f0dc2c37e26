#pragma once

// MakeInstance: a Python object of a bound class whose C++ part lies inside it, instead of beside
// it on the heap. For classes that cannot be moved, and of which there may be 100,000. Threads:
// needs the GIL.

#include <nanobind/nanobind.h>

#include <new>
#include <utility>

namespace moonpool::python {

template <typename T, typename... Args>
nanobind::object MakeInstance(Args&&... args) {
  nanobind::object instance = nanobind::inst_alloc(nanobind::type<T>());
  new (nanobind::inst_ptr<T>(instance)) T(std::forward<Args>(args)...);
  nanobind::inst_mark_ready(instance);
  return instance;
}

}  // namespace moonpool::python
