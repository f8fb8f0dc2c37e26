#pragma once

// The floors: what the machine itself does with the same sizes, measured next to each row. Raw TCP sockets (streams and
// ping-pong), memcpy, and process_vm_readv from the owner's process. Threads: each function uses its own.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace moonpool::bench {

// Serves the raw floors in the owner's process: for each connection a first byte says what it is ('S' sink, 'E' echo).
// Returns the port; runs until the process ends.
uint16_t ServeFloors();

// Bytes per second of `streams` raw sockets, one thread each on both sides, for about `time`; they send from and receive
// into `span` bytes together, over and over, as a row does with its own memory. Without delay, else as the kernel sets
// sockets up; `alike`: with the options that the tcp transport gives connections on one host.
double RawStreams(uint16_t port, int streams, size_t span, Duration time, bool alike = false);

// Seconds of each round trip of `size` bytes there and one byte back, waiting as the engine does: a busy wait of up to
// `spin`, then poll(2).
std::vector<double> RawPingPong(uint16_t port, size_t size, Duration spin, Duration time);

// Bytes per second of memcpy of `block` bytes, walking over `span` bytes.
double Memcpy(size_t block, size_t span, Duration time);

// Bytes per second of process_vm_readv of `count` blocks at a time (`stride` apart), from process `pid`.
struct PeerMemory {
  pid_t pid;
  uint64_t address;
  size_t size;
};
double ProcessRead(const PeerMemory& from, size_t block, size_t count, Duration time);

}  // namespace moonpool::bench
