#include "transport/local/server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unordered_map>

#include "base/mutex.h"
#include "base/str.h"
#include "base/thread.h"
#include "transport/local/connection.h"
#include "transport/local/spin.h"

namespace moonpool::local {
namespace {

constexpr Duration kTick = std::chrono::seconds(1);               // handshakes, arenas that went
constexpr Duration kAcceptPause = std::chrono::milliseconds(50);  // after running out of files
constexpr int kBacklog = 4096;
constexpr int kAcceptsPerTurn = 16;
constexpr int kThreadsMax = 64;

}  // namespace

class ServingThread {
 public:
  ServingThread(Server& server, UniqueFd poller, UniqueFd wake)
      : server_(server),
        work_(server.parts_),
        poller_(std::move(poller)),
        wake_(std::move(wake)),
        spin_(server.parts_.options.spin_max) {}

  static Result<std::unique_ptr<ServingThread>> Create(Server& server) {
    UniqueFd poller(epoll_create1(EPOLL_CLOEXEC));
    UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!poller.valid() || !wake.valid()) {
      return Status(Code::kUnavailable, Str("serving thread: ", std::strerror(errno)));
    }
    auto thread = std::make_unique<ServingThread>(server, std::move(poller), std::move(wake));
    if (!thread->Watch(thread->wake_.get())) {
      return Status(Code::kUnavailable, Str("serving thread: epoll: ", std::strerror(errno)));
    }
    return thread;
  }

  void Run(int number, bool accepts) {
    accepts_ = accepts && Watch(server_.listener_.get());
    thread_ = Thread(Str("mp-local-", number), [this](std::stop_token) { Loop(); });
  }

  void RequestStop() {
    work_.stop.store(true, std::memory_order_release);
    Wake();
  }
  void Join() {
    thread_.Join();
    // Those handed over that the loop did not take any more.
    MutexLock lock(mutex_);
    server_.served_.fetch_sub(static_cast<uint32_t>(inbox_.size()));
    inbox_.clear();
  }

  // Gives a new connection to this thread. Thread-safe.
  void Take(UniqueFd fd) {
    {
      MutexLock lock(mutex_);
      inbox_.push_back(std::move(fd));  // bounded by connections_max
    }
    Wake();
  }

 private:
  bool Watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

  Time Now() const { return server_.parts_.env.clock.Now(); }
  bool stopping() const { return work_.stop.load(std::memory_order_acquire); }

  void Loop() {
    std::array<epoll_event, 64> events;
    Time tick = Now() + kTick;
    while (!stopping()) {
      const int count = WaitForEvents(events, tick);
      for (int i = 0; i < count && !stopping(); ++i)
        Dispatch(events[static_cast<size_t>(i)].data.fd);
      if (const Time now = Now(); now >= tick || (paused_ && now >= resume_)) {
        Tick(now);
        tick = now + kTick;
      }
    }
    while (!connections_.empty()) Drop(connections_.begin()->first);
  }

  // Spins as long as that has paid, then sleeps.
  int WaitForEvents(std::span<epoll_event> events, Time tick) {
    const int room = static_cast<int>(events.size());
    spin_.Begin(BootClock::now());
    do {
      const int count = epoll_wait(poller_.get(), events.data(), room, 0);
      if (count != 0) {
        spin_.Found(BootClock::now());
        return std::max(count, 0);
      }
    } while (spin_.Continue(BootClock::now()) && !stopping());
    // An idle thread sleeps until something comes; ticks are for handshakes and arenas.
    const bool ticks =
        paused_ || std::any_of(connections_.begin(), connections_.end(), [](const auto& entry) {
          return !entry.second->open() || entry.second->exports();
        });
    const int longest = 1000;
    const int wait_ms =
        ticks ? MillisUntil(Now(), paused_ ? std::min(tick, resume_) : tick, longest) : -1;
    const int count = epoll_wait(poller_.get(), events.data(), room, wait_ms);
    if (count > 0) spin_.Found(BootClock::now());
    return std::max(count, 0);
  }

  void Dispatch(int fd) {
    if (fd == wake_.get()) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(fd, &count, sizeof(count));
      TakeInbox();
    } else if (accepts_ && fd == server_.listener_.get()) {
      AcceptSome();
    } else if (const auto it = connections_.find(fd); it != connections_.end()) {
      Serve(*it->second);
    }
  }

  // One packet, so that connections take turns.
  void Serve(Connection& connection) {
    Packet packet = Receive(connection.fd(), buffer_);
    if (packet.error == EAGAIN) return;
    std::string why;
    const bool ended = packet.error == 0 && packet.bytes.empty();
    bool keep = false;
    if (packet.error != 0) {
      why = Str("receive: ", std::strerror(packet.error));
    } else if (!ended) {
      keep = connection.Handle(work_, std::move(packet), &why);
    }
    if (keep) return;
    if (!why.empty()) {
      server_.parts_.counters.connections_rejected.fetch_add(1, std::memory_order_relaxed);
      server_.parts_.env.log.Debug("local connection closed", {{"cause", why}});
    }
    Drop(connection.fd());
  }

  void AcceptSome() {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      UniqueFd fd(accept4(server_.listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (full) PauseAccepting();
        return;
      }
      if (server_.served_.load(std::memory_order_relaxed) >=
              server_.parts_.options.connections_max &&
          !DropHalfOpen()) {
        Welcome full;
        full.code = Code::kExhausted;
        full.id = server_.parts_.env.self;
        full.reason = "too many connections";
        Send(fd.get(), EncodeWelcome(full));
        server_.parts_.counters.connections_rejected.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      server_.served_.fetch_add(1, std::memory_order_relaxed);
      const uint32_t turn = server_.next_.fetch_add(1, std::memory_order_relaxed);
      server_.threads_[turn % server_.threads_.size()]->Take(std::move(fd));
    }
  }

  // Makes room: the connection that has owed its greeting longest goes. Whoever floods us with such
  // does not keep others out. False: all have greeted.
  bool DropHalfOpen() {
    const Connection* oldest = nullptr;
    for (const auto& [fd, connection] : connections_) {
      if (connection->open()) continue;
      if (oldest == nullptr || connection->hello_by() < oldest->hello_by()) {
        oldest = connection.get();
      }
    }
    if (oldest == nullptr) return false;
    server_.parts_.counters.connections_rejected.fetch_add(1, std::memory_order_relaxed);
    Drop(oldest->fd());
    return true;
  }

  void PauseAccepting() {
    epoll_ctl(poller_.get(), EPOLL_CTL_DEL, server_.listener_.get(), nullptr);
    paused_ = true;
    resume_ = Now() + kAcceptPause;
    server_.parts_.env.log.Warning("local transport cannot accept",
                                   {{"cause", "out of file descriptors or memory"}});
  }

  void TakeInbox() {
    std::vector<UniqueFd> fresh;
    {
      MutexLock lock(mutex_);
      fresh.swap(inbox_);
    }
    for (UniqueFd& fd : fresh) {
      const int number = fd.get();
      if (!Watch(number)) {
        server_.served_.fetch_sub(1, std::memory_order_relaxed);
        continue;
      }
      connections_[number] =
          std::make_unique<Connection>(std::move(fd), After(Now(), kHandshakeMax));
      server_.parts_.counters.connections_open.fetch_add(1, std::memory_order_relaxed);
    }
  }

  void Tick(Time now) {
    if (paused_ && now >= resume_) paused_ = !Watch(server_.listener_.get());
    std::vector<int> late;
    for (const auto& [fd, connection] : connections_) {
      const bool keep =
          connection->open() ? connection->DropArenas(work_) : now < connection->hello_by();
      if (!keep) late.push_back(fd);
    }
    for (const int fd : late) {
      server_.parts_.counters.connections_rejected.fetch_add(1, std::memory_order_relaxed);
      Drop(fd);
    }
  }

  void Drop(int fd) {
    // By hand: a duplicate in a forked child would keep it in the poller, and open for the peer.
    epoll_ctl(poller_.get(), EPOLL_CTL_DEL, fd, nullptr);
    shutdown(fd, SHUT_RDWR);
    connections_.erase(fd);
    server_.served_.fetch_sub(1, std::memory_order_relaxed);
    server_.parts_.counters.connections_open.fetch_sub(1, std::memory_order_relaxed);
  }

  Server& server_;
  Workspace work_;
  const UniqueFd poller_;
  const UniqueFd wake_;
  bool accepts_ = false;

  // The thread's own.
  Spin spin_;
  bool paused_ = false;  // accepting
  Time resume_{};
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
  std::array<char, kMessageMax> buffer_;

  Mutex mutex_;
  std::vector<UniqueFd> inbox_ MOONPOOL_GUARDED_BY(mutex_);

  Thread thread_;  // last: joined before what it uses is gone
};

Server::Server(const Parts& parts) : parts_(parts) {}

Server::~Server() { Stop(); }

Result<std::unique_ptr<Server>> Server::Start(const Parts& parts, const Token& name) {
  auto server = std::make_unique<Server>(parts);
  MOONPOOL_ASSIGN_OR_RETURN(server->listener_, Listen(name, kBacklog));
  const int count = std::clamp(parts.options.serving_threads, 1, kThreadsMax);
  for (int i = 0; i < count; ++i) {
    MOONPOOL_ASSIGN_OR_RETURN(auto thread, ServingThread::Create(*server));
    server->threads_.push_back(std::move(thread));
  }
  for (int i = 0; i < count; ++i) server->threads_[static_cast<size_t>(i)]->Run(i, i == 0);
  return server;
}

void Server::Stop() {
  for (auto& thread : threads_) thread->RequestStop();
  for (auto& thread : threads_) thread->Join();
  threads_.clear();
  listener_.Reset();
}

}  // namespace moonpool::local
