#pragma once

// Server: the owner's side of the transport: the listening socket, the handshakes and the event
// threads over which the connections are spread.
//
// A handshake that is not over in kGreetingMax is ended; at the bound of connections the oldest
// unfinished one makes room for a new one. The bound is TransportOptions::connections_max, but at most
// half of the descriptors that the process may have. Until its handshake is over a connection costs a
// descriptor and under 300 bytes.
//
// A hello may name an earlier connection that is to be *fenced*: the thread that has it closes it,
// and only then is the hello answered.
//
// Threads: Create, Stop and port are for the transport; the rest runs in event thread 0, but for
// the directory of connections, which all event threads use.

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "transport/tcp/event_thread.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {

class Server final : private EventSource {
 public:
  static constexpr Duration kGreetingMax = std::chrono::seconds(5);

  static Result<std::unique_ptr<Server>> Create(Shared& shared);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  // Ends the threads, then closes the listening socket: whoever is refused from then on knows that
  // nothing is stored any more.
  void Stop();

 private:
  struct Greeting {
    UniqueFd fd;
    Time since{};
    size_t bytes = 0;
    bool fencing = false;
    uint64_t fence = 0;
    std::array<std::byte, kHelloBytes> hello{};
  };

  Server(Shared& shared, UniqueFd listener);
  Status StartThreads();
  void OnEvent(uint64_t token) override;
  Time OnTime(Time now) override;
  void AcceptSome();
  bool MakeRoom();
  void PauseListening(Time now);
  void OnHelloBytes(uint64_t token, Greeting& greeting);
  void OnHello(uint64_t token, Greeting& greeting);
  void Fence(uint64_t token, uint64_t connection);
  void Reject(uint64_t token);
  void Refuse(uint64_t token, Code code);
  void Admit(uint64_t token);
  void Drop(uint64_t token);
  bool SendWelcome(int fd, Welcome welcome) const;
  void OnClosed(uint64_t id);

  Shared& shared_;
  const uint32_t connections_max_;
  UniqueFd listener_;
  uint16_t port_ = 0;
  std::atomic<uint32_t> connections_{0};    // greeting and serving
  std::map<uint64_t, Greeting> greetings_;  // by token, which only grows: the oldest first
  uint64_t next_token_ = 5;
  size_t next_thread_ = 0;
  bool listening_ = true;
  Time listen_again_ = kNever;

  Mutex mutex_;
  // Which thread has a connection; from before it is given until after it is destroyed.
  std::unordered_map<uint64_t, EventThread*> directory_ MOONPOOL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<EventThread>> threads_;
};

}  // namespace moonpool::tcp
