#include "transport/tcp/clock_relation.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace moonpool::tcp {
namespace {

int64_t Nanos(Time time) { return time.time_since_epoch().count(); }

// a + b, at the end of the range instead of beyond it.
int64_t Saturated(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return b > 0 ? INT64_MAX - 1 : INT64_MIN;
  return std::min(sum, INT64_MAX - 1);
}

}  // namespace

BootId ReadBootId() {
  BootId out{};
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  size_t digits = 0;
  for (const char c : text) {
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || digits == 2 * out.size()) continue;
    out[digits / 2] = static_cast<uint8_t>(out[digits / 2] << 4 | value);
    ++digits;
  }
  return digits == 2 * out.size() ? out : BootId{};
}

void ClockRelation::Begin(const Welcome& welcome, const BootId& own, Time asked, Time received) {
  // One boot may still show two clocks (time namespaces): then the owner's time is outside.
  same_ = own != BootId{} && welcome.boot == own && welcome.clock >= Nanos(asked) &&
          welcome.clock <= Nanos(received);
  lower_ = same_ ? 0 : Saturated(welcome.clock, -Nanos(received));
  since_ = received;
}

void ClockRelation::Observe(int64_t owner, Time received) {
  if (same_) return;
  const int64_t measured = Saturated(owner, -Nanos(received));
  const int64_t aged = lower_ - Drift(received - since_);
  // A peer that lies forward about its clock could only make its own memory be written late.
  lower_ = std::max(measured, aged);
  since_ = received;
}

int64_t ClockRelation::ToOwner(Time deadline, Time now) const {
  if (deadline == kNever) return kNoDeadline;
  if (same_) return Nanos(deadline);
  const int64_t drift = Drift(std::max(deadline, now) - since_);
  return Saturated(Nanos(deadline), lower_ - drift);
}

}  // namespace moonpool::tcp
