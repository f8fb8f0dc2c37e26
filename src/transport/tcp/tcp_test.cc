#include "transport/tcp/tcp.h"

#include <arpa/inet.h>

#include "net/address.h"
#include "net/socket.h"
#include "transport/conformance.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {
namespace {

using transport::conformance::Params;
using transport::conformance::Part;

uint16_t PortOf(const std::string& address) {
  auto decoded = DecodeAddress(address);
  return decoded.ok() ? decoded->port : 0;
}

Params ParamsAt(const std::string& host, bool checksum) {
  Params params;
  params.factory = MakeFactory();
  params.host = host;
  params.options.bind_host = host;
  params.options.checksum = checksum;
  params.port = PortOf;
  params.redirect = [](const std::string& address, uint16_t port) {
    auto decoded = DecodeAddress(address);
    if (!decoded.ok()) return address;
    decoded->port = port;
    return EncodeAddress(*decoded);
  };
  params.dial = [host](const std::string& address) {
    const SystemClock clock;
    const auto to = net::NumericEndpoint(host, PortOf(address));
    if (!to) return UniqueFd();
    auto fd = net::Connect(clock, std::span(&*to, 1), After(clock.Now(), std::chrono::seconds(10)));
    return fd.ok() ? std::move(fd).value() : UniqueFd();
  };
  return params;
}

MOONPOOL_TRANSPORT_CONFORMANCE(Tcp, [] { return ParamsAt("127.0.0.1", true); });
// Only what checksums and addresses change.
MOONPOOL_TRANSPORT_CONFORMANCE(
    TcpPlain, [] { return ParamsAt("127.0.0.1", false); }, Part::kData);
MOONPOOL_TRANSPORT_CONFORMANCE(
    TcpSix, [] { return ParamsAt("::1", true); }, Part::kData);

}  // namespace
}  // namespace moonpool::tcp
