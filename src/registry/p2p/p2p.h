#pragma once

// The registry that is none: a name IS "host:port", and Get returns it, with the port written out.
// Put is accepted and does nothing. URLs: "", "p2p", "p2p://", and "P2PHANDSHAKE" as Mooncake
// writes it.

#include "registry/registry.h"

namespace moonpool::registry::p2p {

Factory MakeFactory();

}  // namespace moonpool::registry::p2p
