// local_bench: the speed of the local transport between two processes, next to its floors measured
// in the same minute, alternately: memcpy of the same sizes (for memory of the engine) and raw
// process_vm_readv (for any memory). Prints a table and, with --json, one line per row.
//
//   local_bench [--json] [--mib N] [--rounds N]

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/log.h"
#include "memory/arena.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "transport/local/local.h"

namespace moonpool::local {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(20);

struct Settings {
  bool json = false;
  size_t bytes = 256 << 20;  // of each buffer, more than the caches
  int rounds = 7;
};

// One side: a transport with one buffer in an arena and one in plain memory.
struct Side {
  explicit Side(size_t size) : bytes(size) {
    auto made = memory::Arena::Create({.size = size});
    if (!made.ok()) std::exit(1);
    arena = std::move(*made);
    const uint32_t number = arenas.Add(arena);
    plain = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(arena->data(), 1, size);
    std::memset(plain, 2, size);
    in_arena = *regions.Register(
        {reinterpret_cast<uint64_t>(arena->data()), size, Rights::kReadWrite, number, 0});
    in_plain = *regions.Register({reinterpret_cast<uint64_t>(plain), size});
    auto created = MakeFactory().create({clock, log, regions, arenas, id}, {});
    if (!created.ok()) {
      std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
      std::exit(1);
    }
    transport = std::move(*created);
  }

  const size_t bytes;
  SystemClock clock;
  Logger log;
  memory::RegionTable regions{clock};
  memory::ArenaSet arenas;
  transport::NodeId id{static_cast<uint64_t>(getpid()), 1};
  std::shared_ptr<memory::Arena> arena;
  std::byte* plain = nullptr;
  RegionInfo in_arena;
  RegionInfo in_plain;
  std::unique_ptr<transport::Transport> transport;
};

struct Greeting {
  std::array<char, 4096> address{};
  size_t address_size = 0;
  transport::NodeId id;
  RegionInfo in_arena;
  RegionInfo in_plain;
};

[[noreturn]] void Own(int out, int in, size_t bytes) {
  Side side(bytes);
  Greeting greeting;
  const std::string address = side.transport->Address();
  std::memcpy(greeting.address.data(), address.data(), address.size());
  greeting.address_size = address.size();
  greeting.id = side.id;
  greeting.in_arena = side.in_arena;
  greeting.in_plain = side.in_plain;
  if (write(out, &greeting, sizeof(greeting)) != sizeof(greeting)) _exit(1);
  char end = 0;
  [[maybe_unused]] const ssize_t got = read(in, &end, 1);  // until the other side is gone
  side.transport->Close();
  _exit(0);
}

double Now() { return std::chrono::duration<double>(BootClock::now().time_since_epoch()).count(); }

struct Job {
  transport::Op op;
  const std::byte* local;
  const RegionInfo* remote;
  size_t piece;  // bytes; every other one of the buffer when `gaps`
  bool gaps;
  size_t batch;  // bytes moved between two waits
};

class Runner {
 public:
  Runner(Side& side, const Greeting& owner) : side_(side) {
    auto peer = side.transport->OpenPeer(
        {"owner", owner.id, "", std::string(owner.address.data(), owner.address_size)},
        After(BootClock::now(), std::chrono::seconds(10)));
    if (!peer.ok()) {
      std::fprintf(stderr, "%s\n", peer.status().ToString().c_str());
      std::exit(1);
    }
    peer_ = std::move(*peer);
    lane_ = std::move(*side.transport->OpenLane());
  }

  // Gigabytes per second of moving `total` bytes.
  double Run(const Job& job, size_t total) {
    const double begin = Now();
    size_t offset = 0;
    const size_t stride = job.gaps ? 2 * job.piece : job.piece;
    for (size_t moved = 0; moved < total;) {
      Build(job, stride, &offset);
      Go();
      moved += job.batch;
    }
    return static_cast<double>(total) / (Now() - begin) / 1e9;
  }

 private:
  void Build(const Job& job, size_t stride, size_t* offset) {
    const size_t pieces_max = std::clamp<size_t>((1 << 20) / job.piece, 1, 512);
    pieces_.clear();
    slices_.clear();
    key_ = job.remote->key;
    for (size_t n = 0; n < job.batch / job.piece; ++n) {
      if (*offset + job.piece > side_.bytes) *offset = 0;
      pieces_.push_back({reinterpret_cast<uint64_t>(job.local) + *offset,
                         job.remote->address + *offset, static_cast<uint32_t>(job.piece), 0});
      *offset += stride;
    }
    for (size_t i = 0; i < pieces_.size(); i += pieces_max) {
      const auto part = std::span(pieces_).subspan(i, std::min(pieces_max, pieces_.size() - i));
      slices_.push_back({i,
                         job.op,
                         After(BootClock::now(), std::chrono::seconds(60)),
                         part,
                         {&key_, 1},
                         part.size() * job.piece});
    }
  }

  void Go() {
    size_t posted = 0;
    size_t done = 0;
    std::array<transport::Completion, 64> out;
    while (done < slices_.size()) {
      if (posted < slices_.size())
        posted += lane_->Post(*peer_, std::span(slices_).subspan(posted));
      const size_t count = lane_->Poll(out, BootClock::now());
      for (size_t i = 0; i < count; ++i) {
        if (out[i].code == Code::kOk) continue;
        std::fprintf(stderr, "failed: %s: %s\n", std::string(CodeName(out[i].code)).c_str(),
                     peer_->last_error().ToString().c_str());
        std::exit(1);
      }
      done += count;
      if (count == 0) Wait();
    }
  }

  // As the engine waits: a short spin, then asleep until the lane has something.
  void Wait() {
    const Time begin = BootClock::now();
    pollfd ready{lane_->event_fd(), POLLIN, 0};
    do {
      const Time now = BootClock::now();
      if (lane_->wake_by() <= now || poll(&ready, 1, 0) > 0) return;
      if (now - begin < kSpin) continue;
      poll(&ready, 1, MillisUntil(now, lane_->wake_by(), 100));
      return;
    } while (true);
  }

  Side& side_;
  std::unique_ptr<transport::Peer> peer_;
  std::unique_ptr<transport::Lane> lane_;
  std::vector<transport::Piece> pieces_;
  std::vector<transport::Slice> slices_;
  RegionKey key_;
};

double CopyFloor(std::byte* to, const std::byte* from, size_t piece, size_t total, size_t bytes) {
  const double begin = Now();
  size_t offset = 0;
  for (size_t moved = 0; moved < total; moved += piece) {
    if (offset + piece > bytes) offset = 0;
    std::memcpy(to + offset, from + offset, piece);
    offset += piece;
  }
  return static_cast<double>(total) / (Now() - begin) / 1e9;
}

double CmaFloor(pid_t pid, std::byte* to, uint64_t from, size_t piece, size_t total, size_t bytes) {
  const double begin = Now();
  size_t offset = 0;
  for (size_t moved = 0; moved < total; moved += piece) {
    if (offset + piece > bytes) offset = 0;
    iovec here{to + offset, piece};
    iovec there{reinterpret_cast<void*>(from + offset), piece};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0) std::exit(1);
    offset += piece;
  }
  return static_cast<double>(total) / (Now() - begin) / 1e9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Row {
  const char* name;
  Job job;
  bool cma;  // which floor
};

void Measure(const Settings& settings, Side& side, const Greeting& owner, pid_t pid) {
  Runner runner(side, owner);
  using transport::Op;
  const std::byte* arena = side.arena->data();
  const size_t mib = 1 << 20;
  std::vector<Row> rows;
  for (const size_t piece : {mib, size_t{65536}, size_t{4096}}) {
    const size_t batch = 16 * mib;
    rows.push_back({"arena read", {Op::kRead, arena, &owner.in_arena, piece, false, batch}, false});
    rows.push_back(
        {"arena write", {Op::kWrite, arena, &owner.in_arena, piece, false, batch}, false});
    rows.push_back(
        {"plain read", {Op::kRead, side.plain, &owner.in_plain, piece, false, batch}, true});
    rows.push_back(
        {"plain write", {Op::kWrite, side.plain, &owner.in_plain, piece, false, batch}, true});
  }
  rows.push_back({"arena read, gaps", {Op::kRead, arena, &owner.in_arena, 4096, true, mib}, false});
  rows.push_back(
      {"arena write, gaps", {Op::kWrite, arena, &owner.in_arena, 4096, true, mib}, false});
  rows.push_back(
      {"plain read, gaps", {Op::kRead, side.plain, &owner.in_plain, 4096, true, mib}, true});
  rows.push_back(
      {"plain write, gaps", {Op::kWrite, side.plain, &owner.in_plain, 4096, true, mib}, true});
  if (!settings.json)
    std::printf("%-20s %9s %9s %9s %7s\n", "what", "piece", "GB/s", "floor", "share");
  for (const Row& row : rows) {
    std::vector<double> ours;
    std::vector<double> floor;
    const size_t total = settings.bytes;
    for (int round = 0; round <= settings.rounds; ++round) {
      const double mine = runner.Run(row.job, total);
      const double theirs =
          row.cma
              ? CmaFloor(pid, side.plain, owner.in_plain.address, row.job.piece, total, side.bytes)
              : CopyFloor(side.arena->data(), side.plain, row.job.piece, total, side.bytes);
      if (round == 0) continue;  // warm-up
      ours.push_back(mine);
      floor.push_back(theirs);
    }
    const double a = Median(ours);
    const double b = Median(floor);
    if (settings.json) {
      std::printf(
          "{\"bench\":\"local\",\"what\":\"%s\",\"piece\":%zu,\"gbps\":%.3f,\"floor\":\"%s\","
          "\"floor_gbps\":%.3f,\"share\":%.3f}\n",
          row.name, row.job.piece, a, row.cma ? "process_vm_readv" : "memcpy", b, a / b);
    } else {
      std::printf("%-20s %9zu %9.2f %9.2f %6.0f%%\n", row.name, row.job.piece, a, b, 100 * a / b);
    }
    std::fflush(stdout);
  }
  // One small read and write at a time.
  for (const Op op : {Op::kRead, Op::kWrite}) {
    const Job job{op, arena, &owner.in_arena, 4096, false, 4096};
    runner.Run(job, 4096 * 1000);
    const double gbps = runner.Run(job, size_t{4096} * 20000);
    std::printf("%s one 4 KiB at a time: %.2f us\n", op == Op::kRead ? "read," : "write,",
                4096 / gbps / 1e3);
  }
}

int Main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--json") settings.json = true;
    if (word == "--mib" && i + 1 < argc) settings.bytes = std::stoul(argv[++i]) << 20;
    if (word == "--rounds" && i + 1 < argc) settings.rounds = std::stoi(argv[++i]);
  }
  std::array<int, 2> up{};
  std::array<int, 2> down{};
  if (pipe(up.data()) != 0 || pipe(down.data()) != 0) return 1;
  const pid_t pid = fork();  // before any thread
  if (pid == 0) {
    close(down[1]);
    Own(up[1], down[0], settings.bytes);
  }
  close(down[0]);
  Greeting owner;
  if (read(up[0], &owner, sizeof(owner)) != sizeof(owner)) return 1;
  {
    Side side(settings.bytes);
    Measure(settings, side, owner, pid);
  }
  close(down[1]);
  waitpid(pid, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace moonpool::local

int main(int argc, char** argv) { return moonpool::local::Main(argc, argv); }
