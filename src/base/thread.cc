#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace moonpool {

Thread::Thread(std::string name, std::function<void(std::stop_token)> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the thread made next
  thread_ = std::jthread([name = name.substr(0, 15), body = std::move(body)](std::stop_token stop) {
    pthread_setname_np(pthread_self(), name.c_str());
    body(std::move(stop));
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace moonpool
