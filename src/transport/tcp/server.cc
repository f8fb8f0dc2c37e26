#include "transport/tcp/server.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/random.h"
#include "base/str.h"
#include "net/socket.h"

namespace moonpool::tcp {
namespace {

constexpr uint64_t kListenerToken = 3;
constexpr int kAcceptsPerTurn = 64;
constexpr Duration kListenPause = std::chrono::milliseconds(100);

// The configured bound, or half of this process's descriptors: the rest is for everything else.
uint32_t ConnectionsMax(uint32_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    wanted = static_cast<uint32_t>(std::min<rlim_t>(wanted, limit.rlim_cur / 2));
  }
  return std::max(1u, wanted);
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(Shared& shared) {
  net::ListenOptions options;
  options.backlog = 4096;
  auto listener = net::Listen(shared.options.bind_host, 0, options);
  if (!listener.ok()) return listener.status().WithContext("tcp transport");
  std::unique_ptr<Server> server(new Server(shared, std::move(listener).value()));
  MOONPOOL_RETURN_IF_ERROR(server->StartThreads());
  return server;
}

Server::Server(Shared& shared, UniqueFd listener)
    : shared_(shared),
      connections_max_(ConnectionsMax(shared.options.connections_max)),
      listener_(std::move(listener)),
      port_(net::LocalPort(listener_.get())) {}

Server::~Server() { Stop(); }

Status Server::StartThreads() {
  const int count = std::clamp(shared_.options.serving_threads, 1, 64);
  for (int i = 0; i < count; ++i) {
    auto thread = EventThread::Create(shared_, [this](uint64_t id) { OnClosed(id); });
    if (!thread.ok()) return thread.status();
    threads_.push_back(std::move(thread).value());
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kListenerToken}};
  if (epoll_ctl(threads_[0]->epoll(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) {
    return Status(Code::kExhausted, Str("tcp transport: epoll_ctl: ", net::ErrnoText(errno)));
  }
  for (int i = 0; i < count; ++i) {
    threads_[static_cast<size_t>(i)]->Start(i, i == 0 ? this : nullptr);
  }
  return Status::Ok();
}

void Server::Stop() {
  for (const auto& thread : threads_) thread->Stop();
  while (!greetings_.empty()) Drop(greetings_.begin()->first);
  // Also when a forked child has it, too.
  if (listener_.valid()) shutdown(listener_.get(), SHUT_RDWR);
  listener_.Reset();
}

void Server::OnClosed(uint64_t id) {
  connections_.fetch_sub(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  directory_.erase(id);
}

void Server::OnEvent(uint64_t token) {
  if (token == kListenerToken) {
    AcceptSome();
    return;
  }
  const auto found = greetings_.find(token);
  if (found != greetings_.end()) OnHelloBytes(token, found->second);
}

Time Server::OnTime(Time now) {
  while (!greetings_.empty() && greetings_.begin()->second.since + kGreetingMax <= now) {
    Reject(greetings_.begin()->first);
  }
  if (!listening_ && listen_again_ <= now) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = kListenerToken}};
    listening_ = epoll_ctl(threads_[0]->epoll(), EPOLL_CTL_MOD, listener_.get(), &event) == 0;
    listen_again_ = listening_ ? kNever : now + kListenPause;
  }
  const Time oldest = greetings_.empty() ? kNever : greetings_.begin()->second.since + kGreetingMax;
  return std::min(oldest, listen_again_);
}

void Server::AcceptSome() {
  const Time now = shared_.env.clock.Now();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    auto accepted = net::Accept(listener_.get());
    if (!accepted.ok()) {
      // Out of descriptors: an unfinished handshake gives its own, or later.
      if (accepted.code() == Code::kExhausted && !MakeRoom()) PauseListening(now);
      return;
    }
    if (connections_.load(std::memory_order_relaxed) >= connections_max_ && !MakeRoom()) {
      Counters::Add(shared_.counters.connections_rejected);
      continue;
    }
    const uint64_t token = next_token_;
    next_token_ += 2;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = token}};
    if (epoll_ctl(threads_[0]->epoll(), EPOLL_CTL_ADD, accepted->get(), &event) != 0) continue;
    Greeting& greeting = greetings_[token];
    greeting.fd = std::move(accepted).value();
    greeting.since = now;
    connections_.fetch_add(1, std::memory_order_relaxed);
  }
}

// Ends the oldest unfinished handshake; false if there is none.
bool Server::MakeRoom() {
  const auto oldest =
      std::ranges::find_if(greetings_, [](const auto& entry) { return !entry.second.fencing; });
  if (oldest == greetings_.end()) return false;
  Reject(oldest->first);
  return true;
}

void Server::PauseListening(Time now) {
  shared_.env.log.Warning("tcp: cannot accept, out of descriptors or memory",
                          {{"pause_ms", kListenPause.count() / 1'000'000}});
  epoll_event event{.events = 0, .data = {.u64 = kListenerToken}};
  epoll_ctl(threads_[0]->epoll(), EPOLL_CTL_MOD, listener_.get(), &event);
  listening_ = false;
  listen_again_ = now + kListenPause;
}

void Server::OnHelloBytes(uint64_t token, Greeting& greeting) {
  if (greeting.fencing) {
    // It may say no more before it is answered; that it gave up is seen when it is.
    epoll_event event{.events = 0, .data = {.u64 = token}};
    epoll_ctl(threads_[0]->epoll(), EPOLL_CTL_MOD, greeting.fd.get(), &event);
    return;
  }
  const ssize_t n = recv(greeting.fd.get(), greeting.hello.data() + greeting.bytes,
                         kHelloBytes - greeting.bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    Drop(token);
    return;
  }
  greeting.bytes += static_cast<size_t>(n);
  // Garbage is known by its first bytes; only whole hellos are decoded, so that no more is kept.
  if (greeting.bytes == kHelloBytes) OnHello(token, greeting);
}

void Server::OnHello(uint64_t token, Greeting& greeting) {
  auto hello = DecodeHello(greeting.hello);
  if (!hello.ok()) {
    Reject(token);
    return;
  }
  if (hello->version_min > kVersionMax || hello->version_max < kVersionMin) {
    Refuse(token, Code::kUnsupported);
    return;
  }
  if (hello->owner != shared_.env.self) {
    Refuse(token, Code::kStale);
    return;
  }
  greeting.fence = hello->fence;
  if (hello->fence == 0) {
    Admit(token);
  } else {
    greeting.fencing = true;
    Fence(token, hello->fence);
  }
}

// Has the thread of `connection` close it, then admits the greeting.
void Server::Fence(uint64_t token, uint64_t connection) {
  EventThread* owner = nullptr;
  {
    MutexLock lock(mutex_);
    const auto found = directory_.find(connection);
    if (found != directory_.end()) owner = found->second;
  }
  if (owner == nullptr) {
    Admit(token);
    return;
  }
  owner->Run([this, owner, connection, token] {
    owner->Close(connection);
    threads_[0]->Run([this, token] {
      if (greetings_.contains(token)) Admit(token);
    });
  });
}

void Server::Drop(uint64_t token) {
  const auto found = greetings_.find(token);
  if (found == greetings_.end()) return;
  CloseWatched(threads_[0]->epoll(), found->second.fd);
  greetings_.erase(found);
  connections_.fetch_sub(1, std::memory_order_relaxed);
}

void Server::Reject(uint64_t token) {
  Counters::Add(shared_.counters.connections_rejected);
  Drop(token);
}

void Server::Refuse(uint64_t token, Code code) {
  Welcome welcome;
  welcome.code = code;
  (void)SendWelcome(greetings_[token].fd.get(), welcome);
  // No more is read; the answer must not be lost to a reset.
  shutdown(greetings_[token].fd.get(), SHUT_WR);
  Reject(token);
}

void Server::Admit(uint64_t token) {
  auto node = greetings_.extract(token);
  Greeting& greeting = node.mapped();
  Welcome welcome;
  welcome.version = kVersionMax;
  welcome.connection = SecureUint64() | 1;  // never 0
  welcome.fenced = greeting.fence;
  TuneSocket(shared_, greeting.fd.get());
  TuneConnected(greeting.fd.get());
  epoll_ctl(threads_[0]->epoll(), EPOLL_CTL_DEL, greeting.fd.get(), nullptr);
  if (!SendWelcome(greeting.fd.get(), welcome)) {
    connections_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  EventThread* const thread = threads_[next_thread_++ % threads_.size()].get();
  {
    MutexLock lock(mutex_);
    directory_[welcome.connection] = thread;
  }
  // A task must be copyable; the descriptor is handed over as what it is.
  const auto fd = std::make_shared<UniqueFd>(std::move(greeting.fd));
  thread->Run([thread, fd, id = welcome.connection] { thread->Serve(std::move(*fd), id); });
}

bool Server::SendWelcome(int fd, Welcome welcome) const {
  welcome.owner = shared_.env.self;
  welcome.boot = shared_.boot;
  welcome.clock = shared_.env.clock.Now().time_since_epoch().count();
  std::array<std::byte, kWelcomeBytes> out;
  EncodeWelcome(welcome, out);
  // The buffer of a new connection is empty: it takes a welcome whole.
  return send(fd, out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(out.size());
}

}  // namespace moonpool::tcp
