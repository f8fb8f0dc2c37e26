#pragma once

// The transport between processes of one host: shared memory and cross-memory attach (CMA,
// process_vm_readv). No byte passes through a socket; sockets carry requests and descriptors.
//
// Same host is proved, never inferred: the boot id must agree, an abstract socket with a random
// name must answer, and the peer's clock must show the same time. What the kernel then refuses
// (CMA in a hardened container, another user) is said by OpenPeer with the error number.
//
// Reads are pulled by the reader, writes are pulled by the owner, so that no frozen writer writes
// late. How it works: README.md; the bytes: docs/formats/local.md.

#include "transport/transport.h"

namespace moonpool::local {

transport::Factory MakeFactory();

}  // namespace moonpool::local
