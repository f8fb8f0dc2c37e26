#include "net/address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/str.h"

namespace moonpool::net {
namespace {

// Peers' and users' text in a message: bounded, printable.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  if (text.size() > 80) out += "...";
  return out + "'";
}

Status Bad(std::string_view text, std::string_view why) {
  return Status(Code::kInvalidArgument,
                Str("address ", Quoted(text), " ", why,
                    "; expected host:port, [ipv6]:port, ipv4:port or a bare host where a default "
                    "port is known"));
}

bool IsName(std::string_view host) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return host.size() <= kHostBytesMax && host.front() != '.' && host.front() != '-' &&
         std::all_of(host.begin(), host.end(), good);
}

// "1.2.3.400" or "1.2.3" are typing errors, not names: the C library would read the latter as
// 1.2.0.3.
bool LooksNumeric(std::string_view host) {
  return host.find_first_not_of("0123456789.") == std::string_view::npos;
}

// The scope of "%eth0" or "%2"; 0 when there is no such interface.
uint32_t ScopeOf(std::string_view zone) {
  uint32_t scope = 0;
  const auto [end, error] = std::from_chars(zone.data(), zone.data() + zone.size(), scope);
  if (error == std::errc() && end == zone.data() + zone.size()) return scope;
  return zone.size() < IF_NAMESIZE ? if_nametoindex(std::string(zone).c_str()) : 0;
}

// The C library would stop at a null character and not see what follows.
bool FitsCString(std::string_view host) {
  return host.size() <= kHostBytesMax && host.find('\0') == std::string_view::npos;
}

std::optional<sockaddr_in6> ParseIpv6(std::string_view host, uint16_t port) {
  if (!FitsCString(host)) return std::nullopt;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  if (const size_t percent = host.find('%'); percent != std::string_view::npos) {
    address.sin6_scope_id = ScopeOf(host.substr(percent + 1));
    if (address.sin6_scope_id == 0) return std::nullopt;
    host = host.substr(0, percent);
  }
  if (host.size() >= INET6_ADDRSTRLEN) return std::nullopt;
  if (inet_pton(AF_INET6, std::string(host).c_str(), &address.sin6_addr) != 1) return std::nullopt;
  return address;
}

// An IPv6 address whose zone need not exist here (it is checked when it is used).
bool IsIpv6Text(std::string_view host) {
  const size_t percent = host.find('%');
  if (percent != std::string_view::npos) {
    const std::string_view zone = host.substr(percent + 1);
    if (zone.empty() || !IsName(zone)) return false;
    host = host.substr(0, percent);
  }
  return ParseIpv6(host, 0).has_value();
}

}  // namespace

std::string HostPort::ToString() const {
  if (host.find(':') != std::string::npos) return Str("[", host, "]:", port);
  return Str(host, ":", port);
}

Result<HostPort> ParseHostPort(std::string_view text, std::optional<uint16_t> default_port) {
  if (text.empty()) return Bad(text, "is empty");
  std::string_view host = text;
  std::optional<std::string_view> port;
  if (text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Bad(text, "has no closing ']'");
    host = text.substr(1, close - 1);
    if (close + 1 < text.size()) {
      if (text[close + 1] != ':') return Bad(text, "has something other than ':port' after ']'");
      port = text.substr(close + 2);
    }
    if (!IsIpv6Text(host)) return Bad(text, "has no IPv6 address between the brackets");
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos) {
      if (!IsIpv6Text(text)) return Bad(text, "is not an IPv6 address");
    } else {
      host = text.substr(0, colon);
      port = text.substr(colon + 1);
    }
  }
  if (host.empty()) return Bad(text, "has no host");
  if (host.find(':') == std::string_view::npos) {
    if (!IsName(host)) {
      return Bad(text, "has a host with characters other than letters, digits, '-', '_', '.'");
    }
    if (LooksNumeric(host) && !NumericEndpoint(host, 0)) {
      return Bad(text, "has a malformed IPv4 address");
    }
  }
  HostPort out{std::string(host), default_port.value_or(0)};
  if (!port) {
    if (!default_port) return Bad(text, "has no port");
    return out;
  }
  const auto [end, error] = std::from_chars(port->data(), port->data() + port->size(), out.port);
  if (error != std::errc() || end != port->data() + port->size()) {
    return Bad(text, "has a port that is not a number from 0 to 65535");
  }
  return out;
}

Endpoint::Endpoint(const sockaddr* address, socklen_t size) {
  const bool v4 = size >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
  const bool v6 = size >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6;
  if (!v4 && !v6) return;
  size_ = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&storage_, address, size_);
}

uint16_t Endpoint::port() const {
  if (!valid()) return 0;
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
}

Endpoint Endpoint::WithPort(uint16_t port) const {
  Endpoint out = *this;
  if (!valid()) return out;
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&out.storage_)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&out.storage_)->sin6_port = htons(port);
  }
  return out;
}

std::string Endpoint::host() const {
  if (!valid()) return "unknown";
  char text[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text,
              sizeof(text));
    return text;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text));
    return text;
  }
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  if (v6->sin6_scope_id != 0) return Str(text, "%", v6->sin6_scope_id);
  return text;
}

std::string Endpoint::ToString() const {
  return valid() ? HostPort{host(), port()}.ToString() : "unknown";
}

bool Endpoint::loopback() const {
  if (!valid()) return false;
  const std::string text = host();  // a mapped IPv4 address is shown as IPv4
  return text == "::1" || text.starts_with("127.");
}

bool operator==(const Endpoint& a, const Endpoint& b) {
  return a.host() == b.host() && a.port() == b.port();
}

bool MeansAllAddresses(std::string_view host) {
  return host.empty() || host == "*" || host == "0.0.0.0" || host == "::";
}

std::optional<Endpoint> NumericEndpoint(std::string_view host, uint16_t port) {
  if (!FitsCString(host)) return std::nullopt;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, std::string(host).c_str(), &v4.sin_addr) == 1) {
    return Endpoint(reinterpret_cast<const sockaddr*>(&v4), sizeof(v4));
  }
  if (const auto v6 = ParseIpv6(host, port)) {
    return Endpoint(reinterpret_cast<const sockaddr*>(&*v6), sizeof(*v6));
  }
  return std::nullopt;
}

}  // namespace moonpool::net
