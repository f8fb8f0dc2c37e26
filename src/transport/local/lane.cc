#include "transport/local/lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/str.h"

namespace moonpool::local {

using transport::Completion;
using transport::Slice;

namespace {

constexpr uint64_t kPollBytes = 1 << 20;
constexpr int kReadsPerPoll = 64;
constexpr int kEventsPerPoll = 64;

const std::shared_ptr<PeerState>& StateOf(const transport::Peer& peer) {
  return static_cast<const LocalPeer&>(peer).state();
}

}  // namespace

Result<std::unique_ptr<transport::Lane>> LocalLane::Create(const Parts& parts) {
  UniqueFd poller(epoll_create1(EPOLL_CLOEXEC));
  if (!poller.valid()) return Status(Code::kUnavailable, Str("lane: ", std::strerror(errno)));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(poller.get(), EPOLL_CTL_ADD, parts.closing_fd, &event) != 0) {
    return Status(Code::kUnavailable, Str("lane: epoll: ", std::strerror(errno)));
  }
  return std::unique_ptr<transport::Lane>(std::make_unique<LocalLane>(parts, std::move(poller)));
}

LocalLane::LocalLane(const Parts& parts, UniqueFd poller)
    : parts_(parts), poller_(std::move(poller)), room_(parts.env, parts.counters, parts.self) {
  room_.poller = poller_.get();
}

LocalLane::~LocalLane() = default;

Link* LocalLane::LinkTo(const transport::Peer& peer) {
  const PeerState* state = StateOf(peer).get();
  for (const auto& link : links_) {
    if (link->peer() == state && link->usable()) return link.get();
  }
  return nullptr;
}

Link& LocalLane::NewLink(const transport::Peer& peer) {
  links_.push_back(std::make_unique<Link>(room_, StateOf(peer)));
  return *links_.back();
}

size_t LocalLane::Post(transport::Peer& peer, std::span<const Slice> slices) {
  if (slices.empty()) return 0;
  const Time now = parts_.env.clock.Now();
  Link* link = LinkTo(peer);
  if (link == nullptr) link = &NewLink(peer);
  size_t accepted = 0;
  while (accepted < slices.size() && link->Accept(slices[accepted], now)) ++accepted;
  if (parts_.closing.load(std::memory_order_acquire)) {
    link->Drain(Code::kCancelled, "the transport is closed");
    return accepted;
  }
  link->Connect(now);
  link->SendWrites(now);
  room_.own.Forget();
  return accepted;
}

size_t LocalLane::Poll(std::span<Completion> out, Time now) {
  if (!closed_ && parts_.closing.load(std::memory_order_acquire)) CloseAll();
  if (!links_.empty()) {
    // First, so that a read never starts at a peer that is known to be gone.
    HandleEvents(now);
    for (const auto& link : links_) {
      link->Retry(now);
      link->Expire(now);
      link->CheckExports(now);
      if (link->released() && link->in_flight() == 0) link->Drain(Code::kCancelled, "released");
    }
    RunReads();
    room_.own.Forget();
  }
  const size_t count = Harvest(out);
  Sweep();
  return count;
}

void LocalLane::HandleEvents(Time now) {
  std::array<epoll_event, kEventsPerPoll> events;
  const int count = epoll_wait(poller_.get(), events.data(), kEventsPerPoll, 0);
  // Links are removed by Sweep alone, so the pointers of this batch are good.
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[static_cast<size_t>(i)].data.u64;
    if (data == 0) continue;  // closing
    auto* link = reinterpret_cast<Link*>(data & ~Link::kEndedBit);
    if (link->dead()) continue;
    if ((data & Link::kEndedBit) != 0) {
      link->OnPeerEnded(now);
    } else {
      link->OnReadable(now);
    }
  }
}

void LocalLane::CloseAll() {
  closed_ = true;
  epoll_ctl(poller_.get(), EPOLL_CTL_DEL, parts_.closing_fd, nullptr);  // it stays readable
  for (const auto& link : links_) link->Drain(Code::kCancelled, "the transport is closed");
}

void LocalLane::RunReads() {
  uint64_t room = kPollBytes;
  bool first = true;
  for (int reads = 0; reads < kReadsPerPoll;) {
    bool progress = false;
    for (size_t i = 0; i < links_.size() && reads < kReadsPerPoll; ++i) {
      const uint64_t bytes = links_[(turn_ + i) % links_.size()]->ReadOne(room, first);
      if (bytes == 0) continue;
      progress = true;
      first = false;
      ++reads;
      room -= std::min(room, bytes);
    }
    ++turn_;
    if (!progress) return;
  }
}

size_t LocalLane::Harvest(std::span<Completion> out) {
  size_t count = 0;
  for (size_t i = 0; i < links_.size() && count < out.size(); ++i) {
    count += links_[(turn_ + i) % links_.size()]->Harvest(out.subspan(count));
  }
  return count;
}

void LocalLane::Sweep() {
  std::erase_if(links_, [](const std::unique_ptr<Link>& link) {
    return link->dead() && link->in_flight() == 0;
  });
}

void LocalLane::Cancel(uint64_t cookie) {
  for (const auto& link : links_) {
    if (link->Cancel(cookie)) return;
  }
}

void LocalLane::Detach(transport::Peer& peer) {
  const PeerState* state = StateOf(peer).get();
  for (const auto& link : links_) {
    if (link->peer() == state && !link->dead()) link->Drain(Code::kCancelled, "detached");
  }
}

Time LocalLane::wake_by() const {
  if (!closed_ && parts_.closing.load(std::memory_order_acquire)) return Time{};
  Time wake = kNever;
  for (const auto& link : links_) {
    if (link->CanRead() || link->done() > 0 || link->dead()) return Time{};
    wake = std::min(wake, link->due());
  }
  return wake;
}

size_t LocalLane::in_flight() const {
  size_t count = 0;
  for (const auto& link : links_) count += link->in_flight();
  return count;
}

}  // namespace moonpool::local
