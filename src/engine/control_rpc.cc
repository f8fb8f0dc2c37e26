#include "engine/control_rpc.h"

#include "base/str.h"
#include "net/address.h"

namespace moonpool::engine {
namespace {

constexpr char kDescribe[] = "segment.describe";
constexpr char kNotify[] = "segment.notify";

transport::Phase PhaseOf(rpc::FailurePhase phase) {
  switch (phase) {
    case rpc::FailurePhase::kResolve:
      return transport::Phase::kResolve;
    case rpc::FailurePhase::kConnect:
      return transport::Phase::kConnect;
    default:
      return transport::Phase::kHandshake;
  }
}

}  // namespace

RpcControl::RpcControl(std::unique_ptr<rpc::Server> server, Clock& clock, Logger& log)
    : server_(std::move(server)), client_(clock, &log) {}

RpcControl::~RpcControl() { RpcControl::Close(); }

Result<std::unique_ptr<RpcControl>> RpcControl::Create(const std::string& listen, Clock& clock,
                                                       Logger& log) {
  MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort where, net::ParseHostPort(listen, 0));
  rpc::ServerOptions options;
  options.bind_host = net::MeansAllAddresses(where.host) ? "" : where.host;
  options.port = where.port;
  MOONPOOL_ASSIGN_OR_RETURN(auto server, rpc::Server::Create(clock, &log, options));
  return std::unique_ptr<RpcControl>(new RpcControl(std::move(server), clock, log));
}

Status RpcControl::Start(Host& host) {
  server_->Handle(kDescribe,
                  [&host](const rpc::CallContext&, std::string_view) -> Result<std::string> {
                    return EncodeDescriptor(host.DescribeSelf());
                  });
  server_->Handle(
      kNotify, [&host](const rpc::CallContext&, std::string_view request) -> Result<std::string> {
        MOONPOOL_ASSIGN_OR_RETURN(const NotifyMessage message, DecodeNotify(request));
        MOONPOOL_RETURN_IF_ERROR(host.Deliver(message));
        return std::string();
      });
  return server_->Start();
}

Result<Control::Fetched> RpcControl::Fetch(const std::string& address, Time deadline,
                                           transport::Phase* phase) {
  rpc::CallInfo info;
  auto reply = client_.Call({address, kDescribe, "", deadline}, &info);
  *phase = PhaseOf(info.phase);
  if (!reply.ok()) return reply.status();
  *phase = transport::Phase::kHandshake;
  auto descriptor = DecodeDescriptor(*reply);
  if (!descriptor.ok()) return descriptor.status().WithContext(Str("peer ", address));
  return Fetched{std::move(descriptor).value(), info.peer_host};
}

Status RpcControl::Notify(const std::string& address, const NotifyMessage& message, Time deadline) {
  return client_.Call({address, kNotify, EncodeNotify(message), deadline}).status();
}

void RpcControl::Close() {
  client_.Close();
  server_->Close();
}

}  // namespace moonpool::engine
