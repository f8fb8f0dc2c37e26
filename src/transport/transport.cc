#include "transport/transport.h"

#include <array>

namespace moonpool::transport {

std::string_view PhaseName(Phase phase) {
  static constexpr std::array<std::string_view, 6> kNames = {"none",      "resolve", "connect",
                                                             "handshake", "data",    "commit"};
  const auto index = static_cast<size_t>(phase);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace moonpool::transport
