#pragma once

// Packets between processes of one host: SOCK_SEQPACKET sockets with abstract names, and the
// descriptor that may travel beside a packet. All non-blocking but Connect.
//
// Threads: pure functions over descriptors.

#include <cstddef>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/local/wire.h"

namespace moonpool::local {

Result<UniqueFd> Listen(const Token& name, int backlog);

// A non-blocking socket, connected, or invalid with *error set (EAGAIN: the backlog is full).
UniqueFd Connect(const Token& name, int* error);

// One packet, with `fd` beside it if that is not -1. 0, or the errno (EAGAIN: no room).
int Send(int socket, std::string_view packet, int fd = -1);

struct Packet {
  std::string_view bytes;  // in the caller's buffer; empty with error 0: the peer has closed
  UniqueFd fd;             // what came beside it
  int error = 0;           // EAGAIN: nothing there; EBADMSG: too long, or too many descriptors
};
Packet Receive(int socket, std::span<char> buffer);

// Blocks until the descriptor is readable (or `wake` is), at most until `deadline`.
// kCancelled: `wake` is readable.
Status WaitReadable(int fd, int wake, Time deadline);

}  // namespace moonpool::local
