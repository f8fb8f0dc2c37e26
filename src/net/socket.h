#pragma once

// TCP sockets: listening, connecting, accepting and the options that matter. Every socket is
// non-blocking and close-on-exec. A listening socket is bound once and kept: ports are never
// "checked free and bound later".
//
// Not responsible for: names (net/resolver.h), waiting for many sockets (net/poller.h).
// Threads: thread-safe (pure functions over descriptors). Errors name the address and the cause;
// the code of a failed connect says what to do: see ConnectFailure.

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "net/address.h"

namespace moonpool::net {

struct ListenOptions {
  int backlog = 1024;      // connections that wait to be accepted
  int buffer_bytes = 0;    // SO_RCVBUF and SO_SNDBUF of accepted sockets; 0: the kernel's choice
  bool ipv6_only = false;  // with a numeric IPv6 host
};

// Listens on `host` (numeric, or a name of this machine, which is looked up and may block; empty:
// all addresses, IPv6 and IPv4 on one socket, IPv4 alone where the kernel has no IPv6) and `port`
// (0: the kernel picks one, see LocalPort). kAlreadyExists: the port is taken; kInvalidArgument:
// not an address of this machine.
Result<UniqueFd> Listen(const std::string& host, uint16_t port, const ListenOptions& options = {});

// Not valid when the socket is not connected (LocalEndpoint: not bound).
Endpoint LocalEndpoint(int fd);
Endpoint PeerEndpoint(int fd);
uint16_t LocalPort(int fd);
std::string PeerName(int fd);  // "10.0.0.7:1234", or "unknown"

// Takes one waiting connection. kAgain: none waits; kExhausted: out of descriptors or memory.
Result<UniqueFd> Accept(int listener);

// Begins to connect. The descriptor becomes writable when the outcome is known: FinishConnect.
Result<UniqueFd> StartConnect(const Endpoint& to);
Status FinishConnect(int fd, const Endpoint& to);

// Tries the endpoints in turn, each with a fair share of the time left, until one is connected.
// The status is that of the last failure. `wake_fd`, if not negative, ends the wait with kCancelled
// when it becomes readable.
Result<UniqueFd> Connect(const Clock& clock, std::span<const Endpoint> endpoints, Time deadline,
                         int wake_fd = -1);

// The status of a connect that failed with `error` (an errno): kUnavailable for refused, reset,
// unreachable and timed out by the kernel; kExhausted for no descriptors, ports or memory; else
// kInternal.
Status ConnectFailure(const Endpoint& to, int error);

// When a wait ends whatever happens. A Time alone will do.
struct Until {
  Until(Time deadline_in, int wake_fd_in = -1)  // NOLINT(google-explicit-constructor)
      : deadline(deadline_in), wake_fd(wake_fd_in) {}
  Time deadline;
  int wake_fd;  // if not negative: the wait ends when it is readable
};

// Waits until `fd` has one of the poll(2) `events`. kTimedOut: the deadline passed; kCancelled: the
// wake descriptor is readable.
Status WaitFor(const Clock& clock, int fd, short events, const Until& until);

void SetNoDelay(int fd);
void SetBuffers(int fd, int bytes);  // both directions; the kernel clamps
void SetSendBuffer(int fd, int bytes);
// False: the kernel does not know it or does not allow it; nothing has changed.
bool SetCongestionControl(int fd, const char* name);
// True when both ends of a connection have the same address or a loopback one: nothing leaves this
// host.
bool StaysOnThisHost(int fd);
// Notices a dead peer within about `timeout`, also while nothing is sent or all that was sent
// waits: keep-alive probes and TCP_USER_TIMEOUT.
void SetDeadPeerTimeout(int fd, Duration timeout);

// "Connection refused": the text of an errno.
std::string ErrnoText(int error);

}  // namespace moonpool::net
