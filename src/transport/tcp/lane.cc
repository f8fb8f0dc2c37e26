#include "transport/tcp/lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/str.h"
#include "net/socket.h"

namespace moonpool::tcp {
namespace {

constexpr size_t kDirectMax = 2;        // links that Poll asks without epoll
constexpr uint32_t kEpollEvery = 16;    // fruitless direct polls, then epoll is asked, too
constexpr size_t kDoneReserved = 1024;  // completions kept without allocating

}  // namespace

Result<std::unique_ptr<Lane>> Lane::Create(Shared& shared) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return Status(Code::kExhausted, Str("epoll_create1: ", net::ErrnoText(errno)));
  }
  return std::unique_ptr<Lane>(new Lane(shared, std::move(epoll)));
}

Lane::Lane(Shared& shared, UniqueFd epoll) : epoll_(std::move(epoll)), context_(shared) {
  context_.epoll = epoll_.get();
  context_.done.reserve(kDoneReserved);
}

Link& Lane::LinkTo(const std::shared_ptr<PeerState>& peer) {
  std::unique_ptr<Link>& link = by_peer_[peer.get()];
  if (link == nullptr) {
    link = std::make_unique<Link>(context_, peer);
    links_.push_back(link.get());
  }
  return *link;
}

size_t Lane::Post(transport::Peer& peer, std::span<const transport::Slice> slices) {
  size_t accepted = 0;
  if (context_.shared.closed.load(std::memory_order_acquire)) {
    for (const transport::Slice& slice : slices) {
      context_.done.push_back({slice.cookie, Code::kUnavailable, transport::Phase::kConnect});
    }
    accepted = slices.size();
  } else {
    accepted = LinkTo(static_cast<Peer&>(peer).state()).Post(slices);
  }
  in_flight_ += accepted;
  return accepted;
}

size_t Lane::Poll(std::span<transport::Completion> out, Time now) {
  if (!closed_ && context_.shared.closed.load(std::memory_order_acquire)) DetachAll(now);
  const uint64_t gone = context_.shared.peers_closed.load(std::memory_order_acquire);
  if (gone != peers_closed_ && DropClosedPeers()) peers_closed_ = gone;
  size_t busy = 0;
  bool blocked = false;
  for (const Link* link : links_) {
    busy += link->busy() ? 1 : 0;
    blocked = blocked || link->blocked();
  }
  const bool direct = busy > 0 && busy <= kDirectMax && !blocked;
  if (direct && PollDirectly(now, busy)) {
    idle_polls_ = 0;
  } else if (!direct || ++idle_polls_ >= kEpollEvery) {
    idle_polls_ = 0;
    PollByEpoll(now);
  }
  for (Link* link : links_) {
    if (link->next_time() <= now) link->OnTime(now);
  }
  return Deliver(out);
}

bool Lane::PollDirectly(Time now, size_t busy) {
  bool moved = false;
  for (size_t i = 0; i < links_.size() && busy > 0; ++i) {
    if (!links_[i]->busy()) continue;
    --busy;
    moved = links_[i]->Progress(now, true, false) || moved;
  }
  return moved;
}

void Lane::PollByEpoll(Time now) {
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    auto* const link = static_cast<Link*>(events[static_cast<size_t>(i)].data.ptr);
    const uint32_t what = events[static_cast<size_t>(i)].events;
    link->Progress(now, (what & ~EPOLLOUT) != 0, (what & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0);
  }
  for (Link* link : links_) {
    if (link->runnable()) link->Progress(now, true, false);
  }
}

void Lane::DetachAll(Time now) {
  closed_ = true;
  for (Link* link : links_) link->Detach(now);
}

// False if some are still busy with what is left of finished slices.
bool Lane::DropClosedPeers() {
  bool all = true;
  std::erase_if(by_peer_, [&](const auto& entry) {
    Link* const link = entry.second.get();
    if (!link->peer().closed.load(std::memory_order_acquire)) return false;
    if (link->busy()) {
      all = false;
      return false;
    }
    std::erase(links_, link);
    return true;
  });
  return all;
}

size_t Lane::Deliver(std::span<transport::Completion> out) {
  std::vector<transport::Completion>& done = context_.done;
  const size_t n = std::min(out.size(), done.size() - delivered_);
  std::copy_n(done.begin() + static_cast<ptrdiff_t>(delivered_), n, out.begin());
  delivered_ += n;
  if (delivered_ == done.size()) {
    done.clear();
    delivered_ = 0;
  }
  in_flight_ -= n;
  return n;
}

void Lane::Cancel(uint64_t cookie) {
  const Time now = context_.shared.env.clock.Now();
  for (Link* link : links_) {
    if (link->Cancel(cookie, now)) return;
  }
}

void Lane::Detach(transport::Peer& peer) {
  const auto found = by_peer_.find(static_cast<Peer&>(peer).state().get());
  if (found != by_peer_.end()) found->second->Detach(context_.shared.env.clock.Now());
}

Time Lane::wake_by() const {
  if (delivered_ < context_.done.size()) return Time::min();
  Time first = kNever;
  for (const Link* link : links_) {
    if (link->runnable()) return Time::min();
    first = std::min(first, link->next_time());
  }
  return first;
}

}  // namespace moonpool::tcp
