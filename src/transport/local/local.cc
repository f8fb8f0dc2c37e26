#include "transport/local/local.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/mutex.h"
#include "base/random.h"
#include "base/str.h"
#include "memory/region_table.h"
#include "transport/local/board.h"
#include "transport/local/lane.h"
#include "transport/local/peer.h"
#include "transport/local/server.h"

namespace moonpool::local {
namespace {

using transport::Environment;
using transport::TransportOptions;

class LocalTransport final : public transport::Transport {
 public:
  static Result<std::unique_ptr<transport::Transport>> Create(const Environment& env,
                                                              const TransportOptions& options);

  LocalTransport(const Environment& env, const TransportOptions& options, Self self)
      : env_(env), options_(options), self_(std::move(self)) {
    capabilities_.same_host_only = true;
    capabilities_.slice_bytes = kSliceBytes;
    capabilities_.slice_pieces_max = kPiecesMax;
    capabilities_.bandwidth_estimate = 8'000'000'000;
    capabilities_.latency_estimate = std::chrono::microseconds(10);
  }
  ~LocalTransport() override { Close(); }

  std::string_view name() const override { return "local"; }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string Address() const override { return EncodeAddress(address_); }

  Result<std::unique_ptr<transport::Peer>> OpenPeer(const transport::PeerOptions& options,
                                                    Time deadline) override {
    auto state = OpenPeerState(self_, options, closing_fd_.get(), deadline);
    if (!state.ok()) return state.status().WithContext(Str("local ", options.name));
    if (const Status note = (*state)->last_error(); !note.ok()) {
      env_.log.Warning("local transport is limited",
                       {{"peer", options.name}, {"cause", note.message()}});
    }
    return std::unique_ptr<transport::Peer>(std::make_unique<LocalPeer>(*std::move(state)));
  }

  Result<std::unique_ptr<transport::Lane>> OpenLane() override {
    return LocalLane::Create({env_, counters_, self_, closing_, closing_fd_.get()});
  }

  void Close() override {
    MutexLock lock(close_mutex_);  // a second caller waits until the first is done
    if (closing_.exchange(true, std::memory_order_acq_rel)) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(closing_fd_.get(), &one, sizeof(one));
    if (board_ != nullptr) board_->StopServing();
    if (server_ != nullptr) server_->Stop();
    if (board_ != nullptr) env_.regions.RemoveObserver(*board_);
  }

  transport::TransportMetrics Metrics() const override {
    transport::TransportMetrics metrics;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    metrics.bytes_sent = counters_.bytes_sent.load(kRelaxed);
    metrics.bytes_received = counters_.bytes_received.load(kRelaxed);
    metrics.slices_served = counters_.slices_served.load(kRelaxed);
    metrics.requests_refused = counters_.requests_refused.load(kRelaxed);
    metrics.connections_open = counters_.connections_open.load(kRelaxed);
    metrics.connections_rejected = counters_.connections_rejected.load(kRelaxed);
    return metrics;
  }

 private:
  Status Start();

  const Environment env_;
  const TransportOptions options_;
  TokenCell cell_;
  Self self_;
  local::Address address_;
  transport::Capabilities capabilities_;
  mutable Counters counters_;
  std::atomic<bool> closing_{false};  // set by Close, seen by lanes' Poll and Post
  UniqueFd closing_fd_;               // readable from Close on
  std::unique_ptr<RegionBoard> board_;
  std::unique_ptr<Server> server_;
  Mutex close_mutex_;
};

Status LocalTransport::Start() {
  closing_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!closing_fd_.valid()) return Status(Code::kUnavailable, std::strerror(errno));
  self_.cell = cell_.cell();
  address_.host = self_.host;
  address_.pid = static_cast<uint32_t>(getpid());
  address_.id = env_.self;
  SecureBytes(address_.socket);
  MOONPOOL_ASSIGN_OR_RETURN(board_, RegionBoard::Create());
  env_.regions.AddObserver(*board_);
  auto server =
      Server::Start({env_, options_, counters_, self_.cell, board_->fd()}, address_.socket);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return Status::Ok();
}

Result<std::unique_ptr<transport::Transport>> LocalTransport::Create(
    const Environment& env, const TransportOptions& options) {
  Self self;
  self.id = env.self;
  MOONPOOL_ASSIGN_OR_RETURN(self.host, ThisHost());
  auto made = std::make_unique<LocalTransport>(env, options, std::move(self));
  if (Status status = made->Start(); !status.ok()) return status.WithContext("local transport");
  return std::unique_ptr<transport::Transport>(std::move(made));
}

}  // namespace

transport::Factory MakeFactory() { return {"local", &LocalTransport::Create}; }

}  // namespace moonpool::local
