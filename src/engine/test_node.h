#pragma once

// The vocabulary of the engine's tests: a Node is an engine of its own in this process, over real transports, with one
// allocated region.

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "testing/patience.h"
#include "transport/builtin.h"

namespace moonpool::engine {

inline Duration Long() { return testing::Patience(std::chrono::seconds(20)); }

struct Node {
  explicit Node(Options options, uint64_t bytes = 1 << 20) {
    World world{clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}, true};
    auto made = Engine::Create(options, std::move(world));
    if (!made.ok()) {
      error = made.status();
      return;
    }
    engine = std::move(made).value();
    auto allocated = engine->Allocate(bytes, Rights::kReadWrite, false);
    if (!allocated.ok()) {
      error = allocated.status();
      return;
    }
    region = *allocated;
  }
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(region.address); }
  uint64_t at(uint64_t offset) const { return region.address + offset; }
  const std::string& address() const { return engine->address(); }

  SystemClock clock;
  Logger log{LogLevel::kError};
  std::unique_ptr<Engine> engine;
  RegionInfo region;
  Status error;
};

inline Options OnLoopback(const std::string& transport) {
  Options options;
  options.listen = "127.0.0.1:0";
  if (!transport.empty()) options.transports = {transport};
  return options;
}

struct Ask {
  SegmentHandle segment = 0;
  transport::Op op = transport::Op::kRead;
  std::vector<uint64_t> local = {};
  std::vector<uint64_t> remote = {};
  std::vector<uint64_t> lengths = {};
  Duration timeout = Long();
  bool notify = false;
  std::string payload = {};
  bool to_queue = false;

  Ask& Add(uint64_t l, uint64_t r, uint64_t n) {
    local.push_back(l);
    remote.push_back(r);
    lengths.push_back(n);
    return *this;
  }
};

inline Result<BatchHandle> Submit(Node& node, const Ask& ask) {
  const Group group{ask.segment, ask.op, ask.local, ask.remote, ask.lengths};
  BatchRequest request;
  request.groups = {&group, 1};
  request.timeout = ask.timeout;
  request.notify = ask.notify;
  request.payload = ask.payload;
  request.to_queue = ask.to_queue;
  return node.engine->Submit(request);
}

// Submits and waits for the end.
inline Status Move(Node& node, const Ask& ask) {
  const auto batch = Submit(node, ask);
  if (!batch.ok()) return batch.status();
  const Status status = node.engine->Wait(*batch, ask.timeout + Long());
  const Status released = node.engine->Release(*batch);
  return status.ok() ? released : status;
}

}  // namespace moonpool::engine
