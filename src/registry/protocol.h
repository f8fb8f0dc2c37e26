#pragma once

// What the registry's server and its client agree on: paths, parameters and header fields.
// Threads: constants.

#include <string>
#include <string_view>

namespace moonpool::registry::protocol {

// Our dialect, with leases. Owners are 16 hexadecimal digits; errors are 400, 404, 409 (another
// owner has the name) and 507 (a bound of the server's).
inline constexpr char kRoot[] = "/registry/v1";         // GET: kVersionField
inline constexpr char kEntry[] = "/registry/v1/entry";  // PUT name owner lease_ms [if_absent=1];
                                                        // GET name; DELETE name owner
inline constexpr char kLease[] = "/registry/v1/lease";  // PUT name owner lease_ms
inline constexpr char kNames[] = "/registry/v1/names";  // GET prefix: one name a line

inline constexpr char kVersionField[] = "X-Moonpool-Registry";
inline constexpr char kEntryVersionField[] = "X-Moonpool-Version";

// Mooncake's metadata server: GET, PUT, DELETE with key; no leases.
inline constexpr char kPlain[] = "/metadata";

}  // namespace moonpool::registry::protocol
