#pragma once

// The registry on an HTTP server. URLs: http://host:port, http://host:port/metadata (or another
// path). The server is asked once what it is: one of ours (registry/server.h), which keeps leases,
// or a plain metadata server as Mooncake's programs use (GET, PUT, DELETE ?key=…), where entries
// carry their own expiry by the wall clock, so that clocks that disagree by more than a lease
// shorten or lengthen it, and capabilities().atomic is false. Until the server has answered,
// capabilities() are those of ours.
//
// One thread (mp-lease, from the first Put on) renews at a third of each lease, and puts an entry
// back that a restarted server has lost, unless another owner has the name by then.

#include <string>

#include "registry/http/dialect.h"
#include "registry/registry.h"

namespace moonpool::registry::http {

Factory MakeFactory();

// With the wall clock that a plain server's expiries are told by.
Result<std::unique_ptr<Registry>> Create(const Environment& env, const std::string& url,
                                         WallClock wall);

}  // namespace moonpool::registry::http
