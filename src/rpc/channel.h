#pragma once

// Channel: the client's end of one RPC connection, shared by the calls to its peer. No thread
// belongs to it: one of the callers that wait reads for all of them, and hands that role on when
// its own reply has come.
//
// Life: Open, then any number of Calls at once, until broken(). Internal to the client.
// Threads: Call, broken and Abort are thread-safe. Ownership: shared by the client's pool and the
// calls in progress.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rpc/client.h"

namespace moonpool::rpc {

class Channel {
 public:
  struct Environment {
    const Clock& clock;
    const ClientOptions& options;
    int wake_fd;  // readable: everything ends with kCancelled
  };

  // Shakes hands over a connected socket.
  static Result<std::shared_ptr<Channel>> Open(const Environment& env, UniqueFd fd, Time deadline);

  Channel(const Environment& env, UniqueFd fd, uint8_t version);  // for Open

  // True when the connection is of no use to new calls. Looks at the socket if nobody reads it.
  bool broken();
  size_t calls() const;
  const std::string& peer_host() const { return peer_host_; }

  // `sent` tells whether any of the request may have reached the peer, `answered` whether the
  // result is the peer's own.
  struct Outcome {
    bool sent = false;
    bool answered = false;
  };
  Result<std::string> Call(const Request& request, Outcome& outcome);

  // Ends the calls in progress and the later ones with `status`.
  void Abort(const Status& status);

 private:
  struct Waiter {
    bool done = false;
    Result<std::string> result = std::string();
    bool answered = false;
  };

  Status Write(std::string_view bytes, Time deadline, bool& sent) MOONPOOL_EXCLUDES(mutex_);
  Status TakeWriter(Time deadline) MOONPOOL_EXCLUDES(mutex_);
  Status ReadOnce(Time deadline) MOONPOOL_EXCLUDES(mutex_);
  Status Deliver() MOONPOOL_REQUIRES(mutex_);
  void Break(const Status& status) MOONPOOL_REQUIRES(mutex_);
  void WaitChanged(Time deadline) MOONPOOL_REQUIRES(mutex_);

  const Environment env_;
  const UniqueFd fd_;
  const uint8_t version_;
  const std::string peer_host_;

  mutable Mutex mutex_;
  CondVar changed_;  // a waiter is done, a role is free, or the channel is broken
  uint64_t next_id_ MOONPOOL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Waiter*> waiters_ MOONPOOL_GUARDED_BY(mutex_);
  bool reading_ MOONPOOL_GUARDED_BY(mutex_) = false;  // a caller has the reader's role
  bool writing_ MOONPOOL_GUARDED_BY(mutex_) = false;  // likewise
  uint64_t reads_ MOONPOOL_GUARDED_BY(mutex_) = 0;    // times that the peer sent something
  bool suspect_ MOONPOOL_GUARDED_BY(mutex_) = false;  // a call ended without a sign of life
  Status failure_ MOONPOOL_GUARDED_BY(mutex_);        // not ok: broken
  std::string in_ MOONPOOL_GUARDED_BY(mutex_);        // received, not yet decoded
};

}  // namespace moonpool::rpc
