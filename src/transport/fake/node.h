#pragma once

// The contract's classes for one node of a Network. Private to this folder. Threads: as the contract says.

#include <memory>

#include "transport/fake/core.h"
#include "transport/transport.h"

namespace moonpool::fake {

// Ownership: `core` outlives the transport; of the environment only the regions and the id are kept.
std::unique_ptr<transport::Transport> MakeTransport(Core& core,
                                                    const transport::Environment& environment);

}  // namespace moonpool::fake
