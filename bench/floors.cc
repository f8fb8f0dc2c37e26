#include "floors.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <latch>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "base/fd.h"
#include "base/thread.h"
#include "transport/tcp/shared.h"

namespace moonpool::bench {
namespace {

constexpr size_t kReceive = 1 << 20;  // bytes asked of one recv

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

std::vector<char> Pages(size_t size) { return std::vector<char>(size, 1); }

void Tune(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Receives into as much memory as the row writes to, from its start to its end and again.
void Sink(int fd) {
  uint64_t span = 0;
  if (::recv(fd, &span, sizeof(span), MSG_WAITALL) != sizeof(span)) return;
  std::vector<char> memory = Pages(span);
  if (::send(fd, "r", 1, MSG_NOSIGNAL) != 1) return;
  size_t at = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, memory.data() + at, std::min(kReceive, memory.size() - at), 0);
    if (n <= 0) return;
    at = (at + static_cast<size_t>(n)) % memory.size();
  }
}

// Receives `size` bytes with a busy wait of up to `spin`, then poll.
bool Receive(int fd, char* to, size_t size, Duration spin) {
  size_t done = 0;
  Time since = BootClock::now();
  while (done < size) {
    const ssize_t n = ::recv(fd, to + done, size - done, MSG_DONTWAIT);
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (BootClock::now() - since < spin) {
      ::sched_yield();  // as the engine waits
      continue;
    }
    pollfd p{fd, POLLIN, 0};
    ::poll(&p, 1, -1);
    since = BootClock::now();
  }
  return true;
}

void Echo(int fd) {
  uint32_t header[2];
  if (::recv(fd, header, sizeof(header), MSG_WAITALL) != sizeof(header)) return;
  std::vector<char> buffer = Pages(header[0]);
  const Duration spin = std::chrono::microseconds(header[1]);
  while (Receive(fd, buffer.data(), buffer.size(), spin)) {
    if (::send(fd, buffer.data(), 1, MSG_NOSIGNAL) != 1) return;
  }
}

UniqueFd Dial(uint16_t port, char kind) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  MOONPOOL_CHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  Tune(fd.get());
  MOONPOOL_CHECK(::send(fd.get(), &kind, 1, MSG_NOSIGNAL) == 1);
  return fd;
}

}  // namespace

uint16_t ServeFloors() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  MOONPOOL_CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&at), size) == 0);
  MOONPOOL_CHECK(::listen(listener, 64) == 0);
  MOONPOOL_CHECK(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  // Lives as long as the process: never joined, so it is kept in a heap cell that is not freed.
  static Thread* const kAcceptor =
      std::make_unique<Thread>("bench-accept", [listener](const std::stop_token&) {
        std::vector<Thread> serving;
        for (;;) {
          const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
          if (fd < 0) continue;
          serving.emplace_back("bench-floor", [fd](const std::stop_token&) {
            const UniqueFd owned(fd);
            Tune(fd);
            char kind = 0;
            if (::recv(fd, &kind, 1, MSG_WAITALL) != 1) return;
            kind == 'S' ? Sink(fd) : Echo(fd);
          });
        }
      }).release();
  (void)kAcceptor;
  return ntohs(at.sin_port);
}

double RawStreams(uint16_t port, int streams, size_t span, Duration time, bool alike) {
  std::vector<double> rates(static_cast<size_t>(streams), 0.0);
  {
    std::vector<Thread> threads;
    std::latch ready(streams);  // all have their memory
    for (double& rate : rates) {
      threads.emplace_back("bench-send", [&](const std::stop_token&) {
        const UniqueFd fd = Dial(port, 'S');
        if (alike) tcp::TuneConnected(fd.get());
        const uint64_t share = span / static_cast<size_t>(streams);
        const std::vector<char> memory = Pages(share);
        char answer = 0;
        MOONPOOL_CHECK(::send(fd.get(), &share, sizeof(share), MSG_NOSIGNAL) == sizeof(share));
        MOONPOOL_CHECK(::recv(fd.get(), &answer, 1, MSG_WAITALL) == 1);
        ready.arrive_and_wait();
        const Time start = BootClock::now();
        Time now = start;
        uint64_t sent = 0;
        for (size_t at = 0; now < start + time; now = BootClock::now()) {
          const size_t want = std::min(kReceive, memory.size() - at);
          const ssize_t n = ::send(fd.get(), memory.data() + at, want, MSG_NOSIGNAL);
          if (n <= 0) return;
          sent += static_cast<uint64_t>(n);
          at = (at + static_cast<size_t>(n)) % memory.size();
        }
        rate = static_cast<double>(sent) / Seconds(now - start);
      });
    }
    for (Thread& thread : threads) thread.Join();
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

std::vector<double> RawPingPong(uint16_t port, size_t size, Duration spin, Duration time) {
  const UniqueFd fd = Dial(port, 'E');
  const uint32_t header[2] = {
      static_cast<uint32_t>(size),
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(spin).count())};
  MOONPOOL_CHECK(::send(fd.get(), header, sizeof(header), MSG_NOSIGNAL) == sizeof(header));
  std::vector<char> buffer = Pages(size);
  std::vector<double> trips;
  const Time until = BootClock::now() + time;
  for (Time before = BootClock::now(); before < until;) {
    MOONPOOL_CHECK(::send(fd.get(), buffer.data(), size, MSG_NOSIGNAL) ==
                   static_cast<ssize_t>(size));
    char answer = 0;
    MOONPOOL_CHECK(Receive(fd.get(), &answer, 1, spin));
    const Time now = BootClock::now();
    trips.push_back(Seconds(now - before));
    before = now;
  }
  return trips;
}

double Memcpy(size_t block, size_t span, Duration time) {
  const std::vector<char> from = Pages(span);
  std::vector<char> to = Pages(span);
  uint64_t bytes = 0;
  const Time start = BootClock::now();
  Time now = start;
  while (now < start + time) {
    for (size_t at = 0; at + block <= span; at += block)
      std::memcpy(to.data() + at, from.data() + at, block);
    bytes += span / block * block;
    now = BootClock::now();
  }
  return static_cast<double>(bytes) / Seconds(now - start);
}

double ProcessRead(const PeerMemory& from, size_t block, size_t count, Duration time) {
  std::vector<char> to = Pages(from.size);
  const size_t step = count > 1 ? 2 * block : block;
  uint64_t bytes = 0;
  const Time start = BootClock::now();
  Time now = start;
  while (now < start + time) {
    for (size_t at = 0; at + block <= from.size;) {
      iovec local[512];
      iovec remote[512];
      size_t n = 0;
      for (; n < std::min<size_t>(count, 512) && at + block <= from.size; ++n, at += step) {
        local[n] = {to.data() + at, block};
        remote[n] = {reinterpret_cast<void*>(from.address + at), block};
      }
      const ssize_t got = ::process_vm_readv(from.pid, local, n, remote, n, 0);
      if (got <= 0) return 0;
      bytes += static_cast<uint64_t>(got);
      now = BootClock::now();
      if (now >= start + time) break;
    }
  }
  return static_cast<double>(bytes) / Seconds(now - start);
}

}  // namespace moonpool::bench
