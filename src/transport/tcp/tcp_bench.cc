// tcp_bench: the tcp transport between two processes next to its floor, two tuned raw sockets, in
// one run, alternately; medians.   tcp_bench [seconds per cell] [spin in us]

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"
#include "net/socket.h"
#include "transport/tcp/tcp.h"

namespace moonpool::tcp {
namespace {

using transport::Op;
using transport::Piece;
using transport::Slice;

constexpr int kRawBuffer = 4 << 20;  // measured best
constexpr size_t kRegion = 400u << 20;

// What the owner tells the initiator.
struct Offer {
  uint64_t address;
  RegionKey key;
  transport::NodeId id;
  uint16_t raw_port;
  uint32_t blob_size[2];
  char blob[2][256];  // with and without checksum
};

struct Node {
  explicit Node(Duration spin) {
    id = {SecureUint64(), SecureUint64()};
    for (const bool checksum : {true, false}) {
      transport::TransportOptions options;
      options.bind_host = "127.0.0.1";
      options.checksum = checksum;
      options.spin_max = spin;
      const transport::Environment env{clock, log, regions, arenas, id};
      transports.push_back(std::move(MakeFactory().create(env, options)).value());
    }
  }
  SystemClock clock;
  Logger log;
  memory::RegionTable regions{clock};
  memory::ArenaSet arenas;
  transport::NodeId id;
  std::vector<std::unique_ptr<transport::Transport>> transports;
};

std::byte* Map() {
  void* p = mmap(nullptr, kRegion, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MOONPOOL_CHECK(p != MAP_FAILED);
  std::memset(p, 1, kRegion);
  return static_cast<std::byte*>(p);
}

double Seconds(Duration d) { return static_cast<double>(d.count()) * 1e-9; }

// Processor time that both processes have used. On a machine that is busy with other things the
// cost of a byte says more than the rate.
struct Usage {
  explicit Usage(pid_t child) { MOONPOOL_CHECK(clock_getcpuclockid(child, &owner) == 0); }
  double Get() const {
    double sum = 0;
    for (const clockid_t id : {owner, clockid_t{CLOCK_PROCESS_CPUTIME_ID}}) {
      timespec t{};
      clock_gettime(id, &t);
      sum += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
    }
    return sum;
  }
  clockid_t owner{};
};

// A rate, and what it would be if these processes had both cores and kept them busy.
struct Rate {
  double gbps = 0;
  double cpu_gbps = 0;
};

// ---- the raw floor

// First byte: 'b' bulk (receive for ever), 'p' ping-pong of 64 bytes, spinning.
void RawServe(int fd, std::byte* memory) {
  net::SetNoDelay(fd);
  net::SetBuffers(fd, kRawBuffer);
  char kind = 0;
  if (recv(fd, &kind, 1, 0) != 1) return;
  size_t at = 0;
  char small[64];
  while (true) {
    if (kind == 'b') {
      const ssize_t n = recv(fd, memory + at, 256 << 10, 0);
      if (n <= 0) return;
      at = (at + static_cast<size_t>(n)) % (kRegion / 4);
    } else {
      const ssize_t n = recv(fd, small, sizeof(small), MSG_DONTWAIT);
      if (n == 0) return;
      if (n < 0) sched_yield();
      if (n > 0 && send(fd, small, sizeof(small), MSG_NOSIGNAL) < 0) return;
    }
  }
}

[[noreturn]] void Owner(int to, int alive, Duration spin) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::byte* const memory = Map();
  Node node(spin);
  auto info =
      node.regions.Register({.address = reinterpret_cast<uint64_t>(memory), .size = kRegion});
  auto raw = net::Listen("127.0.0.1", 0);
  Offer offer{};
  offer.address = info->address;
  offer.key = info->key;
  offer.id = node.id;
  offer.raw_port = net::LocalPort(raw->get());
  for (size_t i = 0; i < 2; ++i) {
    const std::string blob = node.transports[i]->Address();
    offer.blob_size[i] = static_cast<uint32_t>(blob.size());
    std::memcpy(offer.blob[i], blob.data(), blob.size());
  }
  MOONPOOL_CHECK(write(to, &offer, sizeof(offer)) == sizeof(offer));
  std::vector<std::thread> threads;
  while (true) {
    pollfd waits[2] = {{raw->get(), POLLIN, 0}, {alive, POLLIN, 0}};
    poll(waits, 2, -1);
    if (waits[1].revents != 0) _exit(0);
    auto fd = net::Accept(raw->get());
    if (!fd.ok()) continue;
    threads.emplace_back([fd = std::make_shared<UniqueFd>(std::move(*fd)), memory] {
      fcntl(fd->get(), F_SETFL, 0);
      RawServe(fd->get(), memory);
    });
  }
}

UniqueFd RawConnect(uint16_t port, char kind) {
  const SystemClock clock;
  const auto to = net::NumericEndpoint("127.0.0.1", port);
  auto fd = net::Connect(clock, std::span(&*to, 1), After(clock.Now(), std::chrono::seconds(5)));
  fcntl(fd->get(), F_SETFL, 0);
  net::SetNoDelay(fd->get());
  net::SetBuffers(fd->get(), kRawBuffer);
  MOONPOOL_CHECK(send(fd->get(), &kind, 1, 0) == 1);
  return std::move(*fd);
}

Rate RawBulk(const Usage& usage, const Offer& offer, std::byte* memory, int sockets,
             double seconds) {
  const SystemClock clock;
  std::vector<std::thread> threads;
  std::vector<uint64_t> bytes(static_cast<size_t>(sockets));
  const Time begin = clock.Now();
  const double used = usage.Get();
  for (size_t i = 0; i < static_cast<size_t>(sockets); ++i) {
    threads.emplace_back([&, i] {
      const UniqueFd fd = RawConnect(offer.raw_port, 'b');
      size_t at = i * (kRegion / 2);
      while (Seconds(clock.Now() - begin) < seconds) {
        const ssize_t n = send(fd.get(), memory + at, 1 << 20, MSG_NOSIGNAL);
        if (n <= 0) return;
        bytes[i] += static_cast<uint64_t>(n);
        at = i * (kRegion / 2) + (at + (1 << 20)) % (kRegion / 4);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  uint64_t sum = 0;
  for (const uint64_t n : bytes) sum += n;
  const double bytes_sent = static_cast<double>(sum) / 1e9;
  return {bytes_sent / Seconds(clock.Now() - begin), 2 * bytes_sent / (usage.Get() - used)};
}

double RawPing(const Offer& offer, double seconds) {
  const SystemClock clock;
  const UniqueFd fd = RawConnect(offer.raw_port, 'p');
  char small[64] = {};
  std::vector<double> times;
  const Time begin = clock.Now();
  while (Seconds(clock.Now() - begin) < seconds) {
    const Time t = clock.Now();
    if (send(fd.get(), small, sizeof(small), MSG_NOSIGNAL) < 0) break;
    while (recv(fd.get(), small, sizeof(small), MSG_DONTWAIT) < 0) sched_yield();
    times.push_back(Seconds(clock.Now() - t) * 1e6);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

// ---- the transport

struct Shape {
  const char* name;
  uint32_t block;
  size_t count;
  size_t stride;  // in blocks
};

// One lane's share of a batch.
struct Share {
  std::vector<Piece> pieces;
  std::vector<Slice> slices;
  RegionKey key;
};

Share MakeShare(const Offer& offer, std::byte* memory, const Shape& shape, Op op, size_t lane,
                size_t lanes) {
  Share share;
  share.key = offer.key;
  const size_t from = shape.count * lane / lanes;
  const size_t to = shape.count * (lane + 1) / lanes;
  std::vector<size_t> ends;
  uint64_t bytes = 0;
  for (size_t i = from; i < to; ++i) {
    for (uint64_t done = 0; done < shape.block;) {
      const auto size = static_cast<uint32_t>(std::min<uint64_t>(shape.block - done, 1 << 20));
      const size_t first = ends.empty() ? 0 : ends.back();
      if (bytes + size > (1 << 20) || share.pieces.size() - first == 512) {
        ends.push_back(share.pieces.size());
        bytes = 0;
      }
      const uint64_t at = (i * shape.stride * shape.block + done) % (kRegion - (1 << 20));
      share.pieces.push_back(
          {reinterpret_cast<uint64_t>(memory) + at, offer.address + at, size, 0});
      bytes += size;
      done += size;
    }
  }
  ends.push_back(share.pieces.size());
  size_t first = 0;
  for (const size_t end : ends) {
    Slice slice;
    slice.cookie = share.slices.size();
    slice.op = op;
    slice.pieces = std::span(share.pieces).subspan(first, end - first);
    for (const Piece& piece : slice.pieces) slice.bytes += piece.size;
    share.slices.push_back(slice);
    first = end;
  }
  return share;
}

void RunShare(transport::Lane& lane, transport::Peer& peer, const Share& share, const Clock& clock,
              Duration spin) {
  std::span<const Slice> rest = share.slices;
  size_t done = 0;
  transport::Completion out[64];
  Time quiet = clock.Now();
  while (done < share.slices.size()) {
    if (!rest.empty()) rest = rest.subspan(lane.Post(peer, rest));
    const Time now = clock.Now();
    const size_t n = lane.Poll(out, now);
    for (size_t i = 0; i < n; ++i) {
      if (out[i].code != Code::kOk) {
        std::fprintf(stderr, "failed: %s\n", std::string(CodeName(out[i].code)).c_str());
        std::exit(1);
      }
    }
    done += n;
    if (n > 0) quiet = now;
    if (n == 0) sched_yield();
    if (now - quiet > spin) {
      pollfd waits{lane.event_fd(), POLLIN, 0};
      poll(&waits, 1, MillisUntil(now, lane.wake_by(), 100));
      quiet = clock.Now();
    }
  }
}

struct Initiator {
  Node& node;
  const Offer& offer;
  std::byte* memory;
  const Usage& usage;
  const Duration spin;
  double cpu = 0;  // per batch, of the last Run

  // The median seconds of a batch.
  double Run(size_t transport, const Shape& shape, Op op, size_t lanes, double seconds) {
    transport::Transport& tcp = *node.transports[transport];
    const transport::PeerOptions options{
        "owner", offer.id, "127.0.0.1", {offer.blob[transport], offer.blob_size[transport]}};
    auto peer =
        std::move(tcp.OpenPeer(options, After(node.clock.Now(), std::chrono::seconds(5)))).value();
    std::vector<double> times;
    std::vector<std::thread> threads;
    bool over = false;
    const Time begin = node.clock.Now();
    Time last = begin;
    const double used = usage.Get();
    std::barrier sync(static_cast<ptrdiff_t>(lanes), [&]() noexcept {
      const Time now = node.clock.Now();
      times.push_back(Seconds(now - last));
      last = now;
      over = Seconds(now - begin) > seconds && times.size() > 8;
    });
    for (size_t i = 0; i < lanes; ++i) {
      threads.emplace_back([&, i] {
        auto lane = std::move(tcp.OpenLane()).value();
        Share share = MakeShare(offer, memory, shape, op, i, lanes);
        for (Slice& slice : share.slices) slice.keys = std::span(&share.key, 1);
        while (!over) {
          RunShare(*lane, *peer, share, node.clock, spin);
          sync.arrive_and_wait();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    cpu = (usage.Get() - used) / static_cast<double>(times.size());
    std::ranges::sort(times);
    return times[times.size() / 2];
  }
};

void Table(Initiator& initiator, double seconds) {
  constexpr Shape kShapes[] = {
      {"64 x 4 MiB", 4 << 20, 64, 1},          {"64 x 1 MiB", 1 << 20, 64, 1},
      {"64 x 256 KiB", 256 << 10, 64, 1},      {"128 x 64 KiB", 64 << 10, 128, 1},
      {"16 x 64 KiB", 64 << 10, 16, 1},        {"128 x 4 KiB", 4 << 10, 128, 1},
      {"40960 x 4 KiB /2", 4 << 10, 40960, 2}, {"8192 x 256 B", 256, 8192, 2}};
  const Offer& offer = initiator.offer;
  std::printf("GB/s; in brackets: by processor time, and its share of raw2\n");
  for (const Shape& shape : kShapes) {
    const Rate raw1 = RawBulk(initiator.usage, offer, initiator.memory, 1, seconds);
    const Rate raw2 = RawBulk(initiator.usage, offer, initiator.memory, 2, seconds);
    const double bytes = static_cast<double>(shape.block) * static_cast<double>(shape.count) / 1e9;
    std::printf("%-16s raw %4.2f %4.2f cpu %4.2f %4.2f |", shape.name, raw1.gbps, raw2.gbps,
                raw1.cpu_gbps, raw2.cpu_gbps);
    const auto cell = [&](size_t transport, Op op, size_t lanes) {
      const double t = initiator.Run(transport, shape, op, lanes, seconds);
      std::printf(" %s%zu %4.2f (%4.2f %3.0f%%)", op == Op::kRead ? "r" : "w", lanes, bytes / t,
                  2 * bytes / initiator.cpu, 200 * bytes / initiator.cpu / raw2.cpu_gbps);
      std::fflush(stdout);
    };
    std::printf(" crc");
    cell(0, Op::kRead, 1);
    cell(0, Op::kWrite, 1);
    cell(0, Op::kRead, 2);
    cell(0, Op::kWrite, 2);
    std::printf(" | plain");
    cell(1, Op::kRead, 2);
    cell(1, Op::kWrite, 2);
    std::printf("\n");
  }
  constexpr Shape kSmall[] = {{"1 x 64 B", 64, 1, 1}, {"1 x 4 KiB", 4096, 1, 1}};
  for (const Shape& shape : kSmall) {
    const double ping = RawPing(offer, seconds);
    std::printf("%-18s raw ping-pong %5.1f us |", shape.name, ping);
    for (const size_t transport : {size_t{0}, size_t{1}}) {
      for (const Op op : {Op::kRead, Op::kWrite}) {
        const double t = initiator.Run(transport, shape, op, 1, seconds) * 1e6;
        std::printf(" %s%s %5.1f us (%.2f)", transport == 0 ? "crc " : "",
                    op == Op::kRead ? "r" : "w", t, t / ping);
      }
    }
    std::printf("\n");
  }
}

int Main(double seconds, Duration spin) {
  int offer_pipe[2];
  int alive_pipe[2];
  MOONPOOL_CHECK(pipe(offer_pipe) == 0);
  MOONPOOL_CHECK(pipe(alive_pipe) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(alive_pipe[1]);
    Owner(offer_pipe[1], alive_pipe[0], spin);
  }
  close(alive_pipe[0]);
  Offer offer{};
  MOONPOOL_CHECK(read(offer_pipe[0], &offer, sizeof(offer)) == sizeof(offer));
  {
    std::byte* const memory = Map();
    Node node(spin);
    const Usage usage(child);
    Initiator initiator{node, offer, memory, usage, spin};
    Table(initiator, seconds);
  }
  close(alive_pipe[1]);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace moonpool::tcp

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 0.3;
  return moonpool::tcp::Main(seconds,
                             std::chrono::microseconds(argc > 2 ? std::atoi(argv[2]) : 50));
}
