#pragma once

// How the owner's clock relates to ours: a lower bound of (owner's - ours) that is certain, so that
// a deadline converted with it never lies later on the owner's clock than here. Between processes
// that share a boot the clocks are one and the bound is exactly 0; else it comes from the times
// that the owner writes into its answers, and sinks with the drift that two crystals may have.
//
// Threads: thread-compatible.

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {

using BootId = std::array<uint8_t, 16>;

// This machine's, which changes with every boot; zeros when the kernel does not tell.
BootId ReadBootId();

class ClockRelation {
 public:
  // Crystals are good to 100 parts in a million, each.
  static constexpr int64_t kDriftPerMillion = 200;

  // The first measure: the welcome, asked for at `asked` and here at `received`.
  void Begin(const Welcome& welcome, const BootId& own, Time asked, Time received);
  bool same() const { return same_; }
  // A later one: the owner's clock was `owner` at some time before `received`.
  void Observe(int64_t owner, Time received);

  // `deadline` in nanoseconds on the owner's clock, or earlier.
  int64_t ToOwner(Time deadline, Time now) const;

 private:
  static int64_t Drift(Duration elapsed) { return elapsed.count() / 1'000'000 * kDriftPerMillion; }

  bool same_ = false;
  int64_t lower_ = 0;
  Time since_{};  // when lower_ was measured
};

}  // namespace moonpool::tcp
