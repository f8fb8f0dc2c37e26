#pragma once

// Spin: how long to look again before sleeping. The window opens to the maximum when something
// arrived that spinning would have caught, and halves each time that it caught nothing, so an idle
// or a slow partner costs nothing.
//
// Threads: thread-bound.

#include <algorithm>

#include "base/clock.h"

namespace moonpool::local {

class Spin {
 public:
  explicit Spin(Duration longest) : longest_(longest), window_(longest) {}

  void Begin(Time now) { begin_ = now; }
  // True: look again at once. False: sleep.
  bool Continue(Time now) {
    if (now - begin_ < window_) return true;
    window_ /= 2;
    return false;
  }
  // Something arrived.
  void Found(Time now) {
    if (now - begin_ <= longest_) window_ = longest_;
  }

 private:
  const Duration longest_;
  Duration window_;
  Time begin_{};
};

}  // namespace moonpool::local
