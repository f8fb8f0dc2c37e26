#pragma once

// Turns a Status into a Python exception, in this one place: moonpool.errors.from_status makes it,
// with the fields code, peer, transport, phase and cause. Threads: needs the GIL.

#include <string>

#include "base/status.h"
#include "transport/transport.h"

namespace moonpool::python {

// What is known besides the status; empty strings become None.
struct Blame {
  std::string peer;
  std::string transport;
  transport::Phase phase = transport::Phase::kNone;
};

// Requires: the status is not ok.
[[noreturn]] void Raise(const Status& status, const Blame& blame = {});

inline void RaiseIfError(const Status& status, const Blame& blame = {}) {
  if (!status.ok()) Raise(status, blame);
}

[[noreturn]] void RaiseInvalid(const std::string& message);

}  // namespace moonpool::python
