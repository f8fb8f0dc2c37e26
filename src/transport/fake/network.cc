#include "transport/fake/network.h"

#include "transport/fake/core.h"
#include "transport/fake/node.h"

namespace moonpool::fake {

Network::Network(Clock& clock, const NetworkOptions& options)
    : core_(std::make_unique<Core>(clock, options)) {}
Network::~Network() = default;

transport::Factory Network::MakeFactory() {
  return {.name = "fake",
          .create = [core = core_.get()](const transport::Environment& environment,
                                         const transport::TransportOptions&)
              -> Result<std::unique_ptr<transport::Transport>> {
            return MakeTransport(*core, environment);
          }};
}

Time Network::NextEventAt() const { return core_->NextEventAt(); }
bool Network::Step() { return core_->Step(); }
uint64_t Network::events_run() const { return core_->events_run(); }
void Network::SetLink(uint64_t from, uint64_t to, const Link& link) {
  core_->Change([&](Map& map) { map.SetLink(from, to, link); });
}
void Network::SetPartitioned(uint64_t a, uint64_t b, bool partitioned) {
  core_->Change([&](Map& map) { map.SetParted(a, b, partitioned); });
}
void Network::SetFrozen(uint64_t node, bool frozen) {
  core_->Change([&](Map& map) { map.At(node).frozen = frozen; });
}
void Network::SetRefusing(uint64_t node, bool refusing) {
  core_->Change([&](Map& map) { map.At(node).refusing = refusing; });
}
void Network::CorruptNext(uint64_t node, uint32_t count) {
  core_->Change([&](Map& map) { map.At(node).corrupt_next = count; });
}
void Network::CrashNode(uint64_t node, Crash kind) { core_->CrashNode(node, kind); }

}  // namespace moonpool::fake
