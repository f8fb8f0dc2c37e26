#pragma once

// The calling thread's last failure, which moonpool_last_error gives, and the guard around every
// function of the C API. Threads: one failure per thread.

#include <exception>
#include <new>
#include <string>

#include "base/status.h"
#include "moonpool/moonpool.h"
#include "transport/transport.h"

namespace moonpool::capi {

// What is known besides the status.
struct Blame {
  std::string peer;
  std::string transport;
  transport::Phase phase = transport::Phase::kNone;
};

moonpool_code CodeOf(Code code);

// Notes `status` as the thread's last failure unless it is ok; returns its code.
moonpool_code Fail(const Status& status, const Blame& blame = {});

// Runs `call`, which returns a Status.
template <typename Call>
moonpool_code Guard(const Call& call, const Blame& blame = {}) {
  try {
    return Fail(call(), blame);
  } catch (const std::bad_alloc&) {
    return Fail(Status(Code::kExhausted, "out of memory"));
  } catch (const std::exception& error) {
    return Fail(Status(Code::kInternal, error.what()));
  }
}

}  // namespace moonpool::capi
