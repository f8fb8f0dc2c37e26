#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {

std::span<const Case> DeadlineCases() { return {}; }

}  // namespace moonpool::transport::conformance
