#include "rows.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/str.h"
#include "engine/engine.h"
#include "floors.h"
#include "owner.h"
#include "transport/builtin.h"

namespace moonpool::bench {
namespace {

constexpr uint64_t kMemory = 512 << 20;

struct Shape {
  std::vector<uint64_t> local, remote, lengths;
};

Shape MakeShape(const Row& row, uint64_t local, uint64_t remote) {
  Shape shape;
  const uint64_t step = row.count > 1 ? 2 * row.block : row.block;
  for (uint64_t i = 0; i < row.count; ++i) {
    const uint64_t at = i * step % (kMemory - row.block + 1) / 64 * 64;
    shape.local.push_back(local + at);
    shape.remote.push_back(remote + at);
    shape.lengths.push_back(row.block);
  }
  return shape;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double Percentile99(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto at = static_cast<ptrdiff_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

// Batches one after another, or two in flight for throughput rows.
class Runner {
 public:
  Runner(engine::Engine& engine, engine::SegmentHandle segment, const Row& row, Shape shape)
      : engine_(engine), segment_(segment), row_(row), shape_(std::move(shape)) {}

  Status Run(Duration time, std::vector<double>* batch_seconds, double* rate) {
    const Time start = BootClock::now();
    uint64_t bytes = 0;
    Time now = start;
    while (now < start + time) {
      MOONPOOL_ASSIGN_OR_RETURN(const auto batch, Submit());
      const Status status = engine_.Wait(batch, std::chrono::seconds(30));
      MOONPOOL_RETURN_IF_ERROR(engine_.Release(batch));
      MOONPOOL_RETURN_IF_ERROR(status);
      const Time after = BootClock::now();
      batch_seconds->push_back(std::chrono::duration<double>(after - now).count());
      now = after;
      bytes += row_.block * row_.count;
    }
    *rate = static_cast<double>(bytes) / std::chrono::duration<double>(now - start).count();
    return Status::Ok();
  }

 private:
  Result<engine::BatchHandle> Submit() {
    const engine::Group group{segment_, row_.write ? transport::Op::kWrite : transport::Op::kRead,
                              shape_.local, shape_.remote, shape_.lengths};
    engine::BatchRequest request;
    request.groups = {&group, 1};
    request.wait_follows = true;
    return engine_.Submit(request);
  }

  engine::Engine& engine_;
  const engine::SegmentHandle segment_;
  const Row& row_;
  const Shape shape_;
};

// The memory that a row walks over on each side.
size_t SpanOf(const Row& row) {
  const uint64_t bytes = row.block * row.count * (row.count > 1 ? 2 : 1);
  return std::clamp<uint64_t>(bytes, 4 << 20, kMemory);
}

double FloorOf(const Row& row, const Owner& owner, Duration time) {
  switch (row.floor) {
    case FloorKind::kStreams:
      return RawStreams(owner.floor_port, 2, SpanOf(row), time);
    case FloorKind::kStreamsAlike:
      return RawStreams(owner.floor_port, 2, SpanOf(row), time, true);
    case FloorKind::kPingPong:
      return Median(RawPingPong(owner.floor_port, row.block, std::chrono::microseconds(50), time));
    case FloorKind::kMemcpy:
      return Memcpy(row.block * row.count, std::max<uint64_t>(row.block * row.count, 64 << 20),
                    time);
    case FloorKind::kProcessRead:
      return ProcessRead({owner.pid, owner.base, 64 << 20}, row.block, row.count, time);
  }
  return 0;
}

void AddTcpRows(std::vector<Row>& rows) {
  for (const bool checksum : {false, true}) {
    for (const bool write : {true, false}) {
      const std::string kind = Str(write ? "write" : "read", checksum ? " crc" : "");
      for (const uint64_t block : {256u << 10, 1u << 20, 4u << 20}) {
        rows.push_back({Str("tcp ", kind, " 16 x ", block >> 10, " KiB"), "tcp", checksum, true,
                        write, block, 16, FloorKind::kStreams});
      }
      if (!checksum) continue;
      rows.push_back({Str("tcp ", kind, " 16 x 64 KiB"), "tcp", true, true, write, 64 << 10, 16,
                      FloorKind::kStreams});
      rows.push_back({Str("tcp ", kind, " 128 x 64 KiB"), "tcp", true, true, write, 64 << 10, 128,
                      FloorKind::kStreams});
      rows.push_back({Str("tcp ", kind, " 128 x 4 KiB"), "tcp", true, true, write, 4 << 10, 128,
                      FloorKind::kStreams});
      rows.push_back({Str("tcp ", kind, " 40960 x 4 KiB"), "tcp", true, true, write, 4 << 10, 40960,
                      FloorKind::kStreams});
      rows.push_back({Str("tcp ", kind, " 8192 x 256 B"), "tcp", true, true, write, 256, 8192,
                      FloorKind::kStreams});
      rows.push_back(
          {Str("tcp ", kind, " 1 x 64 B"), "tcp", true, true, write, 64, 1, FloorKind::kPingPong});
      rows.push_back({Str("tcp ", kind, " 1 x 4 KiB"), "tcp", true, true, write, 4 << 10, 1,
                      FloorKind::kPingPong});
    }
  }
}

void AddLocalRows(std::vector<Row>& rows) {
  for (const bool engine_memory : {true, false}) {
    for (const bool write : {false, true}) {
      const std::string kind = Str(write ? "write" : "read", engine_memory ? " memfd" : " heap");
      const FloorKind floor = engine_memory ? FloorKind::kMemcpy : FloorKind::kProcessRead;
      for (const uint64_t block : {1u << 20, 4u << 20, 16u << 20}) {
        rows.push_back({Str("local ", kind, " 1 x ", block >> 20, " MiB"), "local", false,
                        engine_memory, write, block, 1, floor});
      }
      rows.push_back({Str("local ", kind, " 16 x 1 MiB"), "local", false, engine_memory, write,
                      1 << 20, 16, floor});
      rows.push_back({Str("local ", kind, " 128 x 4 KiB"), "local", false, engine_memory, write,
                      4 << 10, 128, FloorKind::kProcessRead});
    }
  }
}

}  // namespace

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  AddTcpRows(rows);
  AddLocalRows(rows);
  return rows;
}

double MeasureFloor(const Row& row, const Owner& owner, double seconds) {
  return FloorOf(row, owner,
                 std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

Result<Measured> Measure(const Row& row, int rounds, double seconds) {
  MOONPOOL_ASSIGN_OR_RETURN(Owner owner,
                            StartOwner({row.transport, row.checksum, row.engine_memory, kMemory}));
  SystemClock clock;
  Logger log(LogLevel::kWarning);
  engine::Options options;
  options.listen = "127.0.0.1:0";
  options.transports = {row.transport};
  options.checksum = row.checksum;
  MOONPOOL_ASSIGN_OR_RETURN(
      auto engine,
      engine::Engine::Create(
          options, {clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}, true}));
  std::vector<uint8_t> heap;
  uint64_t local = 0;
  if (row.engine_memory) {
    MOONPOOL_ASSIGN_OR_RETURN(const RegionInfo region,
                              engine->Allocate(kMemory, Rights::kReadWrite, false));
    local = region.address;
    std::memset(reinterpret_cast<void*>(local), 2, kMemory);
  } else {
    heap.assign(kMemory, 2);
    local = reinterpret_cast<uint64_t>(heap.data());
    MOONPOOL_RETURN_IF_ERROR(engine->Register(heap.data(), kMemory, Rights::kReadWrite).status());
  }
  MOONPOOL_ASSIGN_OR_RETURN(const auto segment,
                            engine->Open(owner.address, std::chrono::seconds(10)));
  Runner runner(*engine, segment, row, MakeShape(row, local, owner.base));
  const Duration slice =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  std::vector<double> rates;
  std::vector<double> floors;
  std::vector<double> trips;
  double rate = 0;
  MOONPOOL_RETURN_IF_ERROR(runner.Run(slice / 4, &trips, &rate));  // warm-up
  trips.clear();
  for (int i = 0; i < rounds; ++i) {
    floors.push_back(FloorOf(row, owner, slice));
    MOONPOOL_RETURN_IF_ERROR(runner.Run(slice, &trips, &rate));
    rates.push_back(rate);
  }
  engine->Close();
  StopOwner(owner);
  Measured measured{row, Median(rates), 0, Median(trips), Percentile99(trips), Median(floors), 0};
  measured.descriptors = measured.rate / static_cast<double>(row.block);
  measured.ratio = row.floor == FloorKind::kPingPong ? measured.seconds_median / measured.floor
                                                     : measured.rate / measured.floor;
  return measured;
}

}  // namespace moonpool::bench
