#include "python/errors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

namespace nb = nanobind;

namespace moonpool::python {
namespace {

nb::object TextOrNone(std::string_view text) {
  if (text.empty()) return nb::none();
  // Peers' text can hold anything.
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace

void Raise(const Status& status, const Blame& blame) {
  MOONPOOL_CHECK(!status.ok());
  const std::string_view phase =
      blame.phase == transport::Phase::kNone ? "" : transport::PhaseName(blame.phase);
  const nb::object error =
      nb::module_::import_("moonpool.errors")
          .attr("from_status")(TextOrNone(CodeName(status.code())), TextOrNone(status.message()),
                               TextOrNone(blame.peer), TextOrNone(blame.transport),
                               TextOrNone(phase));
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

void RaiseInvalid(const std::string& message) { Raise(Status(Code::kInvalidArgument, message)); }

}  // namespace moonpool::python
