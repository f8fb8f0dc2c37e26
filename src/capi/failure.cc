#include "capi/failure.h"

namespace moonpool::capi {
namespace {

struct Failure {
  std::string message;
  std::string peer;
  std::string transport;
  std::string phase;
  moonpool_error error{MOONPOOL_OK, "", "", "", ""};
};

Failure& Last() {
  // tidy: allow(static) errno's way: C callers look at it after the call
  static thread_local Failure failure;
  return failure;
}

}  // namespace

moonpool_code CodeOf(Code code) { return static_cast<moonpool_code>(code); }

moonpool_code Fail(const Status& status, const Blame& blame) {
  if (status.ok()) return MOONPOOL_OK;
  Failure& last = Last();
  last.message = status.message();
  last.peer = blame.peer;
  last.transport = blame.transport;
  last.phase = blame.phase == transport::Phase::kNone ? "" : transport::PhaseName(blame.phase);
  last.error = {CodeOf(status.code()), last.message.c_str(), last.peer.c_str(),
                last.transport.c_str(), last.phase.c_str()};
  return last.error.code;
}

}  // namespace moonpool::capi

const moonpool_error* moonpool_last_error(void) { return &moonpool::capi::Last().error; }

const char* moonpool_code_name(moonpool_code code) {
  const int number = static_cast<int>(code);
  if (number < 0 || number >= moonpool::kCodeCount) return "unknown";
  // The names are literals: they end with a zero.
  return moonpool::CodeName(static_cast<moonpool::Code>(number)).data();
}
