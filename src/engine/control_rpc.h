#pragma once

// The production Control: RPC over TCP (rpc/). Methods: "segment.describe" (empty -> descriptor) and "segment.notify" (a
// NotifyMessage -> empty), see docs/formats/segment-descriptor.md. Threads: thread-safe.

#include <memory>
#include <string>

#include "engine/control.h"
#include "rpc/client.h"
#include "rpc/server.h"

namespace moonpool::engine {

class RpcControl final : public Control {
 public:
  // `listen` is host:port as in Options::listen. Binds in Create, answers from Start on.
  static Result<std::unique_ptr<RpcControl>> Create(const std::string& listen, Clock& clock,
                                                    Logger& log);
  ~RpcControl() override;

  Status Start(Host& host) override;
  uint16_t port() const override { return server_->port(); }
  Result<Fetched> Fetch(const std::string& address, Time deadline,
                        transport::Phase* phase) override;
  Status Notify(const std::string& address, const NotifyMessage& message, Time deadline) override;
  void Close() override;

 private:
  RpcControl(std::unique_ptr<rpc::Server> server, Clock& clock, Logger& log);
  std::unique_ptr<rpc::Server> server_;
  rpc::Client client_;
};

}  // namespace moonpool::engine
