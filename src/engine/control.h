#pragma once

// Control: how an engine talks to other engines, apart from data: it fetches their segment descriptors and delivers
// notifications; and the Host, which answers the same two questions for others. The production one is
// engine/control_rpc.h; simulation has its own.
//
// Threads: thread-safe. Fetch and Notify may block until their deadline; Close makes them return.

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/descriptor.h"

namespace moonpool::engine {

// What this process answers to peers.
class Host {
 public:
  virtual ~Host() = default;
  virtual SegmentDescriptor DescribeSelf() const = 0;
  // kAgain: the queue is full, try later. kStale: meant for another incarnation. A repeated one is ok and ignored.
  virtual Status Deliver(const NotifyMessage& message) = 0;
};

class Control {
 public:
  struct Fetched {
    SegmentDescriptor descriptor;
    std::string host;  // numeric address at which the peer answered
  };

  virtual ~Control() = default;
  // Starts answering for `host`, which outlives it or Close. port() is known before.
  virtual Status Start(Host& host) = 0;
  virtual uint16_t port() const = 0;
  // `address` is host:port. kUnavailable, kTimedOut, kUnsupported, kCorrupt; `phase` says how far it came. kAgain: ask again
  // later (only where nothing may block).
  virtual Result<Fetched> Fetch(const std::string& address, Time deadline,
                                transport::Phase* phase) = 0;
  virtual Status Notify(const std::string& address, const NotifyMessage& message,
                        Time deadline) = 0;
  virtual void Close() = 0;
};

}  // namespace moonpool::engine
