#pragma once

// SpinPolicy: whether a thread that has nothing to do should look a little longer before it sleeps.
// It keeps a score of the last waits: one that ended soon speaks for spinning, one that did not
// speaks against it. So a thread spins while answers come and go, and an idle one sleeps at once.
//
// Threads: thread-bound.

#include <algorithm>

#include "base/clock.h"

namespace moonpool::tcp {

class SpinPolicy {
 public:
  explicit SpinPolicy(Duration spin_max) : spin_max_(spin_max) {}

  Duration spin_max() const { return spin_max_; }
  bool worth_it() const { return spin_max_.count() > 0 && score_ > 0; }
  // A wait, spinning or asleep, lasted `waited` until something came.
  void Waited(Duration waited) {
    score_ = std::clamp(score_ + (waited < spin_max_ ? 1 : -2), -4, 8);
  }

 private:
  const Duration spin_max_;
  int score_ = 0;
};

}  // namespace moonpool::tcp
