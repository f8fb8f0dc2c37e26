#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {

std::span<const Case> RegionCases() { return {}; }

}  // namespace moonpool::transport::conformance
