#pragma once

// Inbox: what an engine has for its program to pick up: completed batches and received notifications. Both queues are
// bounded; an eventfd is readable while one has something.
//
// Notifications are delivered exactly once: a sender repeats one until it is acknowledged, and the inbox remembers the
// last kRememberedPerSender sequence numbers of each of the last kSendersMax senders.
//
// Threads: thread-safe.

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/descriptor.h"
#include "engine/options.h"

namespace moonpool::engine {

class Inbox {
 public:
  static constexpr size_t kRememberedPerSender = 4096;
  static constexpr size_t kSendersMax = 1024;

  Inbox(Clock& clock, uint32_t notifications_max, uint32_t completed_max = 1 << 16);

  // kAgain: full. Ok for one that is here already.
  Status Deliver(const NotifyMessage& message);
  std::vector<Notification> TakeNotifications(size_t max, Time deadline);

  // Above completed_max (batches_max) the oldest are forgotten.
  void Completed(BatchHandle handle);
  std::vector<BatchHandle> TakeCompleted(size_t max, Time deadline);

  // Waiting calls return what there is; nothing more comes in.
  void Close();
  int event_fd() const { return event_fd_.get(); }
  uint64_t refused() const;

 private:
  struct Sender {
    std::set<uint64_t> seen;
    std::deque<uint64_t> order;  // of `seen`, oldest first
    std::list<std::pair<uint64_t, uint64_t>>::iterator age;
  };
  Sender& SenderOf(const transport::NodeId& id) MOONPOOL_REQUIRES(mutex_);
  void Signal() MOONPOOL_REQUIRES(mutex_);
  template <typename T>
  std::vector<T> Take(std::deque<T>& from, size_t max, Time deadline) MOONPOOL_REQUIRES(mutex_);

  Clock& clock_;
  const uint32_t notifications_max_;
  const uint32_t completed_max_;
  UniqueFd event_fd_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Notification> notifications_ MOONPOOL_GUARDED_BY(mutex_);
  std::deque<BatchHandle> completed_ MOONPOOL_GUARDED_BY(mutex_);
  std::map<std::pair<uint64_t, uint64_t>, Sender> senders_ MOONPOOL_GUARDED_BY(mutex_);
  std::list<std::pair<uint64_t, uint64_t>> ages_ MOONPOOL_GUARDED_BY(mutex_);  // most recent first
  uint64_t refused_ MOONPOOL_GUARDED_BY(mutex_) = 0;
  bool signalled_ MOONPOOL_GUARDED_BY(mutex_) = false;
  bool closed_ MOONPOOL_GUARDED_BY(mutex_) = false;
};

}  // namespace moonpool::engine
