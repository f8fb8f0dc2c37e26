#include "device/device.h"

// The contract has no code of its own; this file makes the header compile alone.
