#pragma once

// Host memory as a device: private anonymous pages, with transparent huge pages where asked and
// allowed. Always available. Threads: thread-safe. See device/device.h for the contract.

#include "device/device.h"

namespace moonpool::host {

device::Factory MakeFactory();

}  // namespace moonpool::host
