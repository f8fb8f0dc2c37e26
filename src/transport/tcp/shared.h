#pragma once

// What the parts of one tcp transport have in common: its environment, its counters and whether it
// is closed. Shared by the transport (which owns it), its lanes and its event threads, all of which
// the transport outlives.
//
// Threads: thread-safe (constants and independent counters).

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "transport/tcp/clock_relation.h"
#include "transport/transport.h"

namespace moonpool::tcp {

// How much is given to the socket in one step: small enough that the checksum finds it in the
// cache, large enough that the system call does not count.
inline constexpr size_t kStepBytes = 256 << 10;

// Each is a sum, read by Metrics() only: no order is needed between them (relaxed).
struct Counters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> slices_served{0};
  std::atomic<uint64_t> requests_refused{0};
  std::atomic<uint64_t> connections_open{0};
  std::atomic<uint64_t> connections_rejected{0};
  std::atomic<uint64_t> checksum_errors{0};

  static void Add(std::atomic<uint64_t>& counter, uint64_t n = 1) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
  static void Subtract(std::atomic<uint64_t>& counter) {
    counter.fetch_sub(1, std::memory_order_relaxed);
  }
};

// The socket buffers to ask for, in bytes; 0: leave them to the kernel. Large ones let a sender and
// a receiver that share a processor take longer turns; but to ask for what the kernel's bounds
// (net.core.*mem_max) do not allow gives less than the kernel's own choice.
int SocketBufferBytes();

struct Shared {
  Shared(const transport::Environment& env_in, const transport::TransportOptions& options_in)
      : env(env_in),
        options(options_in),
        boot(ReadBootId()),
        buffer_bytes(SocketBufferBytes()),
        closing(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // Readable from Close on: what blocks waits for it, too.
  int closing_fd() const { return closing.get(); }

  const transport::Environment env;
  const transport::TransportOptions options;
  const BootId boot;
  const int buffer_bytes;
  const UniqueFd closing;  // an eventfd; Create fails when there is none
  Counters counters;
  std::atomic<bool> closed{false};        // set by Close (release), read by lanes (acquire)
  std::atomic<uint64_t> peers_closed{0};  // grows when a Peer is destroyed; lanes then look again
};

// Ends a connection and takes it out of `epoll`. Closing alone does neither while another process
// has the descriptor, too: a forked child has until it calls exec.
void CloseWatched(int epoll, UniqueFd& fd);

// The thread sanitizer learns from the calls that it intercepts what a socket puts in order; a
// fenced call is none of them. Call it after one that received.
inline void OrderForSanitizer([[maybe_unused]] int fd) {
#if defined(__SANITIZE_THREAD__)
  char nothing = 0;
  (void)recv(fd, &nothing, 0, MSG_DONTWAIT);
#endif
}

// Socket options of every connection, on both sides.
void TuneSocket(const Shared& shared, int fd);

// What a connection that stays on this host needs besides, once it is connected. It has no
// bandwidth to be found out and no queue to be kept short, so a congestion control that paces
// (bbr, where it is the default) only costs: `script/bench --match "tuned alike"` shows how much.
// And what is sent is received out of the processor's cache only if little of it waits.
void TuneConnected(int fd);

}  // namespace moonpool::tcp
