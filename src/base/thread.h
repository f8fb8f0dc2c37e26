#pragma once

// Thread: the only way to make a thread here. It has a name (shown by ps -L, 15 characters at
// most), a stop request and is joined by its destructor. The thread table is in ARCHITECTURE.md.
//
// Not responsible for: waking what the body waits on; whoever asks to stop also wakes it.
// Threads: thread-compatible; RequestStop is thread-safe. All signals are blocked in the new
// thread, so that a program's handlers run on the program's own threads.

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace moonpool {

class Thread {
 public:
  Thread() = default;
  // Starts `body` at once.
  Thread(std::string name, std::function<void(std::stop_token)> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&&) = default;

  bool joinable() const { return thread_.joinable(); }
  void RequestStop() { thread_.request_stop(); }
  // Returns when the body has; a no-op if there is nothing to join.
  void Join();

 private:
  std::jthread thread_;
};

}  // namespace moonpool
