#include "transport/conformance_world.h"
