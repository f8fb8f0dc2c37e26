#include "engine/inbox.h"

#include <sys/eventfd.h>

#include <algorithm>

#include "base/str.h"

namespace moonpool::engine {

Inbox::Inbox(Clock& clock, uint32_t notifications_max, uint32_t completed_max)
    : clock_(clock),
      notifications_max_(notifications_max),
      completed_max_(completed_max),
      event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Inbox::Sender& Inbox::SenderOf(const transport::NodeId& id) {
  const std::pair<uint64_t, uint64_t> key(id.node, id.incarnation);
  const auto found = senders_.find(key);
  if (found != senders_.end()) {
    ages_.splice(ages_.begin(), ages_, found->second.age);
    return found->second;
  }
  ages_.push_front(key);
  if (ages_.size() > kSendersMax) {
    senders_.erase(ages_.back());
    ages_.pop_back();
  }
  return senders_.emplace(key, Sender{{}, {}, ages_.begin()}).first->second;
}

Status Inbox::Deliver(const NotifyMessage& message) {
  {
    MutexLock lock(mutex_);
    if (closed_) return Status(Code::kUnavailable, "the engine is closed");
    Sender& sender = SenderOf(message.sender_id);
    if (sender.seen.count(message.sequence) > 0) return Status::Ok();
    if (notifications_.size() >= notifications_max_) {
      ++refused_;
      return Status(Code::kAgain, Str("the notification queue is full (", notifications_max_, ")"));
    }
    sender.seen.insert(message.sequence);
    sender.order.push_back(message.sequence);
    if (sender.order.size() > kRememberedPerSender) {
      sender.seen.erase(sender.order.front());
      sender.order.pop_front();
    }
    notifications_.push_back({message.sender, message.payload});
    Signal();
  }
  changed_.NotifyAll();
  return Status::Ok();
}

void Inbox::Completed(BatchHandle handle) {
  {
    MutexLock lock(mutex_);
    if (completed_.size() >= completed_max_) completed_.pop_front();  // nobody takes them
    completed_.push_back(handle);
    Signal();
  }
  changed_.NotifyAll();
}

void Inbox::Signal() {
  const uint64_t one = 1;  // each time: edge-triggered watchers hear of each
  signalled_ = ::write(event_fd_.get(), &one, sizeof(one)) == sizeof(one);
}

template <typename T>
std::vector<T> Inbox::Take(std::deque<T>& from, size_t max, Time deadline) {
  while (from.empty() && !closed_) {
    const Time now = clock_.Now();
    if (now >= deadline) break;
    changed_.WaitFor(mutex_, std::min<Duration>(deadline - now, std::chrono::milliseconds(100)));
  }
  std::vector<T> taken;
  while (!from.empty() && taken.size() < max) {
    taken.push_back(std::move(from.front()));
    from.pop_front();
  }
  if (signalled_ && notifications_.empty() && completed_.empty()) {
    uint64_t count = 0;
    signalled_ = ::read(event_fd_.get(), &count, sizeof(count)) != sizeof(count);
  }
  return taken;
}

std::vector<Notification> Inbox::TakeNotifications(size_t max, Time deadline) {
  MutexLock lock(mutex_);
  return Take(notifications_, max, deadline);
}

std::vector<BatchHandle> Inbox::TakeCompleted(size_t max, Time deadline) {
  MutexLock lock(mutex_);
  return Take(completed_, max, deadline);
}

void Inbox::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    Signal();
  }
  changed_.NotifyAll();
}

uint64_t Inbox::refused() const {
  MutexLock lock(mutex_);
  return refused_;
}

}  // namespace moonpool::engine
