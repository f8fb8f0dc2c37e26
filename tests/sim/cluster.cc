#include "cluster.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/str.h"

namespace moonpool::sim {

using engine::Control;
using engine::NotifyMessage;

namespace {

// Slow enough that faults strike in mid-transfer: 10 KiB take 5 ms.
fake::Link SlowLink() {
  fake::Link link;
  link.latency = std::chrono::microseconds(300);
  link.bandwidth = 2'000'000;
  return link;
}

}  // namespace

// Answers at once or not at all: a lost request or reply is a time-out, as nothing may block here.
class Cluster::SimControl final : public Control {
 public:
  SimControl(Cluster& cluster, size_t self) : cluster_(cluster), self_(self) {}

  Status Start(engine::Host& host) override {
    cluster_.hosts_[self_] = &host;
    return Status::Ok();
  }
  uint16_t port() const override { return 7000; }

  Result<Fetched> Fetch(const std::string& address, Time, transport::Phase* phase) override {
    *phase = transport::Phase::kConnect;
    auto target = Find(address);
    if (!target.ok()) return target.status();
    *phase = transport::Phase::kHandshake;
    if (Lost()) return Status(Code::kTimedOut, "the reply was lost");
    return Fetched{cluster_.hosts_[*target]->DescribeSelf(), Str("node", *target)};
  }

  Status Notify(const std::string& address, const NotifyMessage& message, Time) override {
    MOONPOOL_ASSIGN_OR_RETURN(const size_t target, Find(address));
    Status delivered = cluster_.hosts_[target]->Deliver(message);
    if (Lost()) return Status(Code::kTimedOut, "the reply was lost");
    return delivered;
  }

  void Close() override { cluster_.hosts_[self_] = nullptr; }

 private:
  bool Lost() { return cluster_.random_.Below(1'000'000) < cluster_.control_loss_ppm_; }

  Result<size_t> Find(const std::string& address) {
    for (size_t i = 0; i < cluster_.size(); ++i) {
      if (AddressOf(i) != address) continue;
      if (!cluster_.Reachable(self_, i) || Lost()) return Status(Code::kTimedOut, "no answer");
      if (cluster_.hosts_[i] == nullptr) return Status(Code::kUnavailable, "connection refused");
      return i;
    }
    return Status(Code::kUnavailable, "no such node");
  }

  Cluster& cluster_;
  const size_t self_;
};

Cluster::Cluster(const ClusterOptions& options)
    : options_(options),
      random_(options.seed),
      network_(clock_,
               {.seed = options.seed, .link = SlowLink(), .step_bytes = 512, .slice_bytes = 4096}) {
  hosts_.resize(options.nodes, nullptr);
  crashes_.resize(options.nodes, fake::Crash::kProcess);
  for (size_t i = 0; i < options.nodes; ++i) processes_.push_back(std::make_unique<Process>());
  for (size_t i = 0; i < options.nodes; ++i) Start(i);
}

Cluster::~Cluster() {
  for (auto& process : processes_) process->engine.reset();
}

std::string Cluster::AddressOf(size_t node) { return Str("node", node, ":7000"); }

void Cluster::Start(size_t node) {
  Process& process = *processes_[node];
  process.memory.assign(options_.memory_bytes, 0);
  engine::Options options;
  options.listen = AddressOf(node);
  options.timeout = std::chrono::seconds(2);
  options.retry_window = std::chrono::milliseconds(300);
  engine::World world{clock_,
                      log_,
                      {network_.MakeFactory()},
                      nullptr,
                      std::make_unique<SimControl>(*this, node),
                      {node + 1, ++incarnations_},
                      false};
  auto made = engine::Engine::Create(options, std::move(world));
  MOONPOOL_CHECK(made.ok());
  process.engine = std::move(made).value();
  MOONPOOL_CHECK(
      process.engine->Register(process.memory.data(), process.memory.size(), Rights::kReadWrite)
          .ok());
}

void Cluster::Crash(size_t node, fake::Crash kind) {
  if (!up(node)) return;
  network_.CrashNode(node + 1, kind);
  hosts_[node] = nullptr;
  crashes_[node] = kind;
  processes_[node]->engine.reset();
  frozen_.erase(node);
  past_.push_back(std::move(processes_[node]));
  processes_[node] = std::make_unique<Process>();
}

void Cluster::Restart(size_t node) {
  if (!up(node)) Start(node);
}

void Cluster::Freeze(size_t node, bool frozen) {
  if (!up(node)) return;
  network_.SetFrozen(node + 1, frozen);
  if (frozen) {
    frozen_.insert(node);
  } else {
    frozen_.erase(node);
  }
}

void Cluster::Partition(size_t a, size_t b, bool partitioned) {
  if (a == b) return;
  network_.SetPartitioned(a + 1, b + 1, partitioned);
  const auto pair = std::minmax(a, b);
  if (partitioned) {
    partitions_.insert(pair);
  } else {
    partitions_.erase(pair);
  }
}

void Cluster::SetNoise(uint32_t loss_ppm, uint32_t corrupt_ppm, uint32_t control_loss_ppm) {
  control_loss_ppm_ = control_loss_ppm;
  fake::Link link = SlowLink();
  link.loss_ppm = loss_ppm;
  link.corrupt_ppm = corrupt_ppm;
  for (size_t a = 0; a < size(); ++a) {
    for (size_t b = 0; b < size(); ++b) network_.SetLink(a + 1, b + 1, link);
  }
}

void Cluster::Heal() {
  for (size_t a = 0; a < size(); ++a) {
    if (frozen(a)) Freeze(a, false);
    for (size_t b = 0; b < a; ++b) Partition(a, b, false);
    Restart(a);
  }
  SetNoise(0, 0, 0);
}

bool Cluster::Reachable(size_t from, size_t to) const {
  if (frozen_.count(to) > 0 || partitions_.count(std::minmax(from, to)) > 0) return false;
  return hosts_[to] != nullptr || crashes_[to] == fake::Crash::kProcess;
}

void Cluster::Tick() {
  for (size_t i = 0; i < size(); ++i) {
    if (up(i) && !frozen(i)) processes_[i]->engine->Drive();
  }
  while (network_.Step()) continue;
  clock_.AdvanceTo(std::min(network_.NextEventAt(), clock_.Now() + std::chrono::milliseconds(1)));
}

}  // namespace moonpool::sim
