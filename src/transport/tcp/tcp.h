#pragma once

// The tcp transport: moves bytes between hosts (or processes) over TCP, scatter/gather straight
// from and into registered memory, many slices in flight on one connection per lane and peer, with
// CRC32C per slice. README.md has the parts; docs/formats/tcp.md the wire.
//
// Threads and ownership: as transport/transport.h says; serving_threads threads mp-tcp-N.
// Errors of create: kInvalidArgument (bind_host is no address of this machine), kExhausted.

#include "transport/transport.h"

namespace moonpool::tcp {

transport::Factory MakeFactory();

}  // namespace moonpool::tcp
