#include "run.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/str.h"
#include "cluster.h"
#include "testing/pattern.h"

namespace moonpool::sim {
namespace {

using engine::BatchHandle;
using testing::FillPattern;
using testing::PatternErrors;
using transport::Op;

constexpr size_t kSlotBytes = 2048;
constexpr uint64_t kQuarantine = 0xdead;  // the pattern of ranges that nobody may store to

// A range of one process's memory that belongs to one batch, or is watched.
struct Slot {
  uint8_t* at = nullptr;
  size_t size = 0;
};

struct Flight {
  size_t from = 0;
  size_t to = 0;
  const Process* from_life = nullptr;  // the process that submitted
  const Process* to_life = nullptr;    // the one whose addresses it names
  BatchHandle batch = 0;
  Op op = Op::kWrite;
  Time deadline{};
  uint64_t pattern = 0;
  std::vector<Slot> sources;
  std::vector<Slot> targets;
  std::string note;  // payload of its notification; empty: none
};

class Workload {
 public:
  Workload(uint64_t seed, int steps)
      : random_(seed * 7919 + 1),
        steps_(steps),
        cluster_({seed, 2 + Random(seed).Below(4), 1 << 20}) {}

  RunResult Run() {
    cluster_.SetNoise(static_cast<uint32_t>(random_.Below(20000)),
                      static_cast<uint32_t>(random_.Below(5000)),
                      static_cast<uint32_t>(random_.Below(100000)));
    for (int i = 0; i < steps_ && result_.error.empty(); ++i) {
      Act();
      for (uint64_t n = random_.Below(12); n > 0; --n) Advance();
    }
    cluster_.Heal();
    const Time until = cluster_.clock().Now() + std::chrono::seconds(5);
    while (!flights_.empty() && result_.error.empty() && cluster_.clock().Now() < until) Advance();
    if (!flights_.empty()) Fail(Str(flights_.size(), " batches never ended"));
    CheckHealed();
    CheckNotes();
    for (const Slot& slot : watched_) CheckUntouched(slot);
    return result_;
  }

 private:
  void Fail(const std::string& what) {
    if (!result_.error.empty()) return;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                        cluster_.clock().Now().time_since_epoch())
                        .count();
    result_.error = Str("at ", ms, " ms: ", what);
  }

  size_t AnyNode() { return random_.Below(cluster_.size()); }

  void Act() {
    const uint64_t dice = random_.Below(100);
    if (dice < 70) return Begin(AnyNode(), AnyNode());
    if (dice < 76) return CancelOne();
    ++result_.faults;
    const size_t node = AnyNode();
    if (dice < 80) return cluster_.Freeze(node, true);
    if (dice < 86) return cluster_.Freeze(node, false);
    if (dice < 88) return Crash(node);
    if (dice < 94) return cluster_.Restart(node);
    if (dice < 96) return cluster_.Partition(node, AnyNode(), true);
    for (size_t a = 0; a < cluster_.size(); ++a) cluster_.Partition(node, a, false);
  }

  void Crash(size_t node) {
    if (!cluster_.up(node)) return;
    const Process* life = &cluster_.at(node);
    cluster_.Crash(node, random_.Chance(1, 2) ? fake::Crash::kProcess : fake::Crash::kMachine);
    used_.erase(life);
    // Its batches are gone with it. Their ranges at others may be stored to until their deadlines.
    for (Flight& flight : flights_) {
      if (flight.from_life == life) abandoned_.push_back(std::move(flight));
    }
    std::erase_if(flights_, [&](const Flight& flight) { return flight.from_life == life; });
  }

  // A slot of a process that no other batch uses; none when it is full.
  std::optional<Slot> Take(Process& process, size_t size) {
    size_t& next = used_[&process];
    if ((next + 1) * kSlotBytes > process.memory.size()) return std::nullopt;
    return Slot{process.memory.data() + kSlotBytes * next++ + random_.Below(kSlotBytes - size + 1),
                size};
  }

  void Begin(size_t from, size_t to) {
    if (!cluster_.up(from) || !cluster_.up(to) || cluster_.frozen(from)) return;
    Process& here = cluster_.at(from);
    Process& there = cluster_.at(to);
    const auto segment = here.engine->Open(Cluster::AddressOf(to), std::chrono::seconds(1));
    if (!segment.ok()) return;
    Flight flight{.from = from,
                  .to = to,
                  .from_life = &here,
                  .to_life = &there,
                  .op = random_.Chance(1, 2) ? Op::kRead : Op::kWrite,
                  .pattern = ++patterns_,
                  .sources = {},
                  .targets = {},
                  .note = {}};
    std::vector<uint64_t> local, remote, lengths;
    for (uint64_t n = 1 + random_.Below(6); n > 0; --n) {
      const size_t size = 1 + random_.Below(kSlotBytes);
      const auto mine = Take(here, size);
      const auto theirs = Take(there, size);
      if (!mine || !theirs) break;
      flight.sources.push_back(flight.op == Op::kWrite ? *mine : *theirs);
      flight.targets.push_back(flight.op == Op::kWrite ? *theirs : *mine);
      FillPattern(flight.sources.back().at, size, flight.pattern, local.size() * kSlotBytes);
      local.push_back(reinterpret_cast<uint64_t>(mine->at));
      remote.push_back(reinterpret_cast<uint64_t>(theirs->at));
      lengths.push_back(size);
    }
    if (local.empty()) return;
    const engine::Group group{*segment, flight.op, local, remote, lengths};
    engine::BatchRequest request;
    request.groups = {&group, 1};
    request.timeout =
        std::chrono::milliseconds(1 + random_.Below(random_.Chance(1, 2) ? 20 : 1000));
    request.priority = random_.Chance(1, 2) ? engine::Priority::kLatency : engine::Priority::kBulk;
    request.notify = flight.op == Op::kWrite && random_.Chance(1, 2);
    if (request.notify) request.payload = flight.note = Str("note ", flight.pattern);
    flight.deadline = cluster_.clock().Now() + request.timeout;
    const auto batch = here.engine->Submit(request);
    if (!batch.ok()) return Fail(Str("submit: ", batch.status().ToString()));
    flight.batch = *batch;
    flights_.push_back(std::move(flight));
  }

  void CancelOne() {
    if (flights_.empty()) return;
    const Flight& flight = flights_[random_.Below(flights_.size())];
    if (!cluster_.frozen(flight.from)) (void)cluster_.at(flight.from).engine->Cancel(flight.batch);
  }

  void Advance() {
    cluster_.Tick();
    TakeNotes();
    for (size_t i = 0; i < flights_.size();) {
      if (Ended(flights_[i])) {
        flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    const Time now = cluster_.clock().Now();
    for (size_t i = 0; i < abandoned_.size();) {
      if (now > abandoned_[i].deadline + transport::kSettleMax) {
        for (const Slot& slot : abandoned_[i].targets) Watch(slot);
        abandoned_.erase(abandoned_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  bool Ended(const Flight& flight) {
    if (cluster_.frozen(flight.from)) return false;
    engine::Engine& engine = *cluster_.at(flight.from).engine;
    const auto status = engine.Poll(flight.batch);
    if (!status.ok()) {
      Fail(Str("poll: ", status.status().ToString()));
      return true;
    }
    if (!status->done) {
      if (cluster_.clock().Now() > flight.deadline + Late()) {
        Fail(Str("batch ", flight.pattern, " from ", flight.from, " to ", flight.to, " is late"));
        return true;
      }
      return false;
    }
    if (status->status.ok()) {
      ++result_.batches_ok;
      CheckMoved(flight);
    } else {
      ++result_.batches_failed;
      for (const Slot& slot : flight.targets) Watch(slot);
    }
    if (!flight.note.empty())
      expected_.push_back({flight.note, flight.to, flight.to_life, status->status.ok()});
    (void)engine.Release(flight.batch);
    return true;
  }

  // A frozen node polls late; what it did while frozen is not held against it.
  Duration Late() const { return transport::kSettleMax + std::chrono::seconds(2); }

  void CheckMoved(const Flight& flight) {
    // The addresses are those of one life of the peer. Had it restarted, they would not be in the new one's region, so
    // an ok batch moved all bytes to or from this life.
    for (size_t i = 0; i < flight.targets.size(); ++i) {
      const Slot& slot = flight.targets[i];
      const std::string wrong = PatternErrors(slot.at, slot.size, flight.pattern, i * kSlotBytes);
      if (!wrong.empty())
        return Fail(Str("batch ", flight.pattern, " is ok but descriptor ", i,
                        " has wrong bytes: ", wrong));
    }
  }

  void Watch(const Slot& slot) {
    FillPattern(slot.at, slot.size, kQuarantine, reinterpret_cast<uint64_t>(slot.at));
    watched_.push_back(slot);
  }

  void CheckUntouched(const Slot& slot) {
    const std::string wrong =
        PatternErrors(slot.at, slot.size, kQuarantine, reinterpret_cast<uint64_t>(slot.at));
    if (!wrong.empty()) Fail(Str("a late write: ", wrong));
  }

  void TakeNotes() {
    for (size_t node = 0; node < cluster_.size(); ++node) {
      if (!cluster_.up(node) || cluster_.frozen(node)) continue;
      for (engine::Notification& note :
           cluster_.at(node).engine->TakeNotifications(100, Duration{0})) {
        ++result_.notifications;
        const auto key = std::make_pair(&cluster_.at(node), note.payload);
        if (++notes_[key] > 1) Fail(Str("'", note.payload, "' arrived twice at node ", node));
        CheckDataOf(note.payload);
      }
    }
  }

  // The batch of a notification that has just arrived has its data in place.
  void CheckDataOf(const std::string& payload) {
    for (const Flight& flight : flights_) {
      if (flight.note == payload) return CheckMoved(flight);
    }
  }

  void CheckNotes() {
    for (const Expected& expected : expected_) {
      const bool same_life =
          cluster_.up(expected.to) && &cluster_.at(expected.to) == expected.to_life;
      const auto count = notes_.find({expected.to_life, expected.payload});
      if (expected.ok && same_life && count == notes_.end())
        Fail(Str("'", expected.payload, "' never arrived"));
    }
  }

  void CheckHealed() {
    for (size_t from = 0; from < cluster_.size(); ++from) {
      for (size_t to = 0; to < cluster_.size() && result_.error.empty(); ++to) CheckPair(from, to);
    }
    for (size_t node = 0; node < cluster_.size(); ++node) {
      const engine::Info info = cluster_.at(node).engine->Describe();
      if (info.batches_live != 0)
        Fail(Str("node ", node, " keeps ", info.batches_live, " batches"));
    }
  }

  void CheckPair(size_t from, size_t to) {
    Process& here = cluster_.at(from);
    Process& there = cluster_.at(to);
    used_[&here] = 0;
    const Time until = cluster_.clock().Now() + std::chrono::seconds(5);
    std::vector<uint8_t> memory(kSlotBytes);
    FillPattern(memory.data(), memory.size(), from * 100 + to + 1);
    if (!here.engine->Register(memory.data(), memory.size(), Rights::kReadWrite).ok())
      return Fail("register");
    std::vector<uint8_t> target(kSlotBytes);
    if (!there.engine->Register(target.data(), target.size(), Rights::kReadWrite).ok())
      return Fail("register");
    const auto segment = here.engine->Open(Cluster::AddressOf(to), std::chrono::seconds(1));
    if (!segment.ok()) return Fail(Str("open after healing: ", segment.status().ToString()));
    const std::vector<uint64_t> local{reinterpret_cast<uint64_t>(memory.data())};
    const std::vector<uint64_t> remote{reinterpret_cast<uint64_t>(target.data())};
    const std::vector<uint64_t> lengths{kSlotBytes};
    const engine::Group group{*segment, Op::kWrite, local, remote, lengths};
    engine::BatchRequest request;
    request.groups = {&group, 1};
    request.timeout = std::chrono::seconds(5);
    const auto batch = here.engine->Submit(request);
    if (!batch.ok()) return Fail(Str("submit after healing: ", batch.status().ToString()));
    Result<engine::BatchStatus> status = here.engine->Poll(*batch);
    while (!status->done && cluster_.clock().Now() < until + transport::kSettleMax) {
      cluster_.Tick();
      status = here.engine->Poll(*batch);
    }
    if (!status->done || !status->status.ok())
      Fail(Str("after healing, ", from, " to ", to, ": ", status->status.ToString()));
    if (target != memory) Fail("after healing, wrong bytes");
    (void)here.engine->Release(*batch);
    if (!here.engine->Deregister(memory.data(), std::chrono::seconds(1)).ok()) Fail("deregister");
    if (!there.engine->Deregister(target.data(), std::chrono::seconds(1)).ok()) Fail("deregister");
  }

  struct Expected {
    std::string payload;
    size_t to;
    const Process* to_life;
    bool ok;
  };

  Random random_;
  const int steps_;
  Cluster cluster_;
  RunResult result_;
  uint64_t patterns_ = 0;
  std::vector<Flight> flights_;
  std::vector<Flight> abandoned_;
  std::vector<Slot> watched_;
  std::map<const Process*, size_t> used_;
  std::map<std::pair<const Process*, std::string>, int> notes_;
  std::vector<Expected> expected_;
};

}  // namespace

RunResult Run(uint64_t seed, int steps) { return Workload(seed, steps).Run(); }

}  // namespace moonpool::sim
