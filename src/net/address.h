#pragma once

// Network addresses: what users write ("host:port"), what the kernel takes (Endpoint), and the way
// from the one to the other. IPv4, IPv6 (bracketed or bare) and host names are all welcome
// everywhere.
//
// Not responsible for: sockets (net/socket.h), looking names up (net/resolver.h).
//
// Threads: values and pure functions; no call here ever blocks.
//
//   ParseHostPort("[::1]:80")            -> {"::1", 80}
//   ParseHostPort("fe80::1%eth0", 7000)  -> {"fe80::1%eth0", 7000}   (bare IPv6: has no port)
//   ParseHostPort("node7")               -> kInvalidArgument: 'node7' has no port

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace moonpool::net {

// The longest host that is accepted: a DNS name has 253 characters at most.
inline constexpr size_t kHostBytesMax = 255;

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;

  // "host:port", with brackets around a host that has colons. ParseHostPort reads it back.
  std::string ToString() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// "host:port", "[v6]:port", "[v6]", "v6" or "host"; the last three take `default_port`. Text with
// two colons or more and no brackets is a bare IPv6 address and has no port. kInvalidArgument names
// the text and what is wrong with it. Accepted hosts: numeric addresses (IPv6 with an optional
// %zone) and names of letters, digits, '-', '_' and '.'; nothing is looked up.
Result<HostPort> ParseHostPort(std::string_view text,
                               std::optional<uint16_t> default_port = std::nullopt);

// One address of one port as the kernel has it: AF_INET or AF_INET6.
class Endpoint {
 public:
  Endpoint() = default;  // "unknown": valid() is false
  // Requires: `address` is an AF_INET or AF_INET6 address of `size` bytes; any other gives an
  // endpoint that is not valid.
  Endpoint(const sockaddr* address, socklen_t size);

  bool valid() const { return size_ != 0; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  Endpoint WithPort(uint16_t port) const;
  // The numeric address: "10.0.0.7", "::1", "fe80::1%2"; an IPv4 address that came through an IPv6
  // socket (::ffff:a.b.c.d) is shown as IPv4. "unknown" if not valid.
  std::string host() const;
  std::string ToString() const;  // host and port, as HostPort prints them
  bool loopback() const;         // 127.0.0.0/8, also as ::ffff:127.x.y.z, or ::1

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  friend bool operator==(const Endpoint& a, const Endpoint& b);

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// Whether `host`, as users write where to listen, means all addresses: empty, "*", "0.0.0.0" or "::".
bool MeansAllAddresses(std::string_view host);

// The endpoint of a numeric address; empty if `host` is not one (it may be a name).
std::optional<Endpoint> NumericEndpoint(std::string_view host, uint16_t port);

}  // namespace moonpool::net
