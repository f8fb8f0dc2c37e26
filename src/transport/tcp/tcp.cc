#include "transport/tcp/tcp.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <utility>

#include "base/str.h"
#include "net/socket.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/peer.h"
#include "transport/tcp/server.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {
namespace {

using transport::TransportMetrics;
using transport::TransportOptions;

class TcpTransport final : public transport::Transport {
 public:
  static Result<std::unique_ptr<transport::Transport>> Create(
      const transport::Environment& environment, const TransportOptions& options) {
    std::unique_ptr<TcpTransport> transport(new TcpTransport(environment, options));
    if (!transport->shared_.closing.valid()) {
      return Status(Code::kExhausted, Str("tcp transport: eventfd: ", net::ErrnoText(errno)));
    }
    auto server = Server::Create(transport->shared_);
    if (!server.ok()) return server.status();
    transport->server_ = std::move(server).value();
    return std::unique_ptr<transport::Transport>(std::move(transport));
  }
  ~TcpTransport() override { Close(); }

  std::string_view name() const override { return "tcp"; }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string Address() const override {
    return EncodeAddress({server_->port(), shared_.env.self});
  }

  Result<std::unique_ptr<transport::Peer>> OpenPeer(const transport::PeerOptions& options,
                                                    Time deadline) override {
    const std::string context = Str("peer ", options.name, ", tcp, resolve");
    if (shared_.closed.load(std::memory_order_acquire)) {
      return Status(Code::kUnavailable, "the transport is closed").WithContext(context);
    }
    auto address = DecodeAddress(options.address);
    if (!address.ok()) return address.status().WithContext(context);
    if (address->id != options.id) {
      return Status(Code::kStale, "the address is another process's").WithContext(context);
    }
    const auto endpoint = net::NumericEndpoint(options.host, address->port);
    if (!endpoint) {
      return Status(Code::kInvalidArgument, Str("host '", options.host, "' is not numeric"))
          .WithContext(context);
    }
    auto state = std::make_shared<PeerState>(options, *endpoint);
    MOONPOOL_RETURN_IF_ERROR(OpenAndCheck(shared_, *state, deadline));
    return std::unique_ptr<transport::Peer>(std::make_unique<Peer>(shared_, std::move(state)));
  }

  Result<std::unique_ptr<transport::Lane>> OpenLane() override {
    if (shared_.closed.load(std::memory_order_acquire)) {
      return Status(Code::kUnavailable, "tcp: the transport is closed");
    }
    auto lane = Lane::Create(shared_);
    if (!lane.ok()) return lane.status();
    return std::unique_ptr<transport::Lane>(std::move(lane).value());
  }

  void Close() override {
    shared_.closed.store(true, std::memory_order_release);
    eventfd_write(shared_.closing_fd(), 1);
    if (server_ != nullptr) server_->Stop();
  }

  TransportMetrics Metrics() const override {
    const auto get = [](const std::atomic<uint64_t>& c) {
      return c.load(std::memory_order_relaxed);
    };
    const Counters& c = shared_.counters;
    return {get(c.bytes_sent),       get(c.bytes_received),   get(c.slices_served),
            get(c.requests_refused), get(c.connections_open), get(c.connections_rejected),
            get(c.checksum_errors)};
  }

 private:
  TcpTransport(const transport::Environment& environment, const TransportOptions& options)
      : shared_(environment, options) {
    capabilities_.checksum = options.checksum;
    capabilities_.slice_bytes = kSliceBytes;
    capabilities_.slice_pieces_max = kPiecesMax;
    capabilities_.bandwidth_estimate = 2'500'000'000;
    capabilities_.latency_estimate = std::chrono::microseconds(40);
  }

  Shared shared_;
  transport::Capabilities capabilities_;
  std::unique_ptr<Server> server_;
};

}  // namespace

int SocketBufferBytes() {
  constexpr int kWanted = 4 << 20;
  for (const char* bound : {"/proc/sys/net/core/wmem_max", "/proc/sys/net/core/rmem_max"}) {
    int bytes = 0;
    std::ifstream(bound) >> bytes;
    if (bytes < kWanted) return 0;
  }
  return kWanted;
}

void CloseWatched(int epoll, UniqueFd& fd) {
  if (!fd.valid()) return;
  epoll_ctl(epoll, EPOLL_CTL_DEL, fd.get(), nullptr);
  shutdown(fd.get(), SHUT_RDWR);
  fd.Reset();
}

void TuneSocket(const Shared& shared, int fd) {
  net::SetNoDelay(fd);
  if (shared.buffer_bytes > 0) net::SetBuffers(fd, shared.buffer_bytes);
  net::SetDeadPeerTimeout(fd, std::chrono::seconds(30));
}

void TuneConnected(int fd) {
  if (!net::StaysOnThisHost(fd)) return;
  constexpr int kSendBuffer = 1 << 20;
  net::SetSendBuffer(fd, kSendBuffer);
  net::SetCongestionControl(fd, "reno");
}

transport::Factory MakeFactory() { return {"tcp", &TcpTransport::Create}; }

}  // namespace moonpool::tcp
