#include "transport/local/pull.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "testing/pattern.h"
#include "transport/local/spin.h"

namespace moonpool::local {
namespace {

using moonpool::testing::FillPattern;
using moonpool::testing::PatternErrors;

// Pages of which some are taken away again.
class Pages {
 public:
  explicit Pages(size_t count) : size_(count * kPage) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Pages() { munmap(data_, size_); }
  std::byte* at(size_t page) const { return data_ + page * kPage; }
  void Remove(size_t page) const { mprotect(at(page), kPage, PROT_NONE); }
  static constexpr size_t kPage = 4096;

 private:
  size_t size_;
  std::byte* data_;
};

class Pull : public ::testing::Test {
 protected:
  Origin Self() const { return {getpid(), 0, cell_.cell()}; }
  static Move Plain(std::byte* to, const std::byte* from, size_t size) {
    return {to, nullptr, reinterpret_cast<uint64_t>(from), size};
  }
  TokenCell cell_;
};

TEST_F(Pull, ManyRangesArriveInPlace) {
  const Pages from(16);
  const Pages to(16);
  FillPattern(from.at(0), 16 * 4096, 1);
  std::vector<Move> moves;
  for (size_t i = 0; i < 16; i += 2) moves.push_back(Plain(to.at(i), from.at(i), 4096));
  moves.push_back({to.at(1), from.at(1), 0, 4096});  // mapped
  EXPECT_EQ(PullStep(Self(), moves, kNever), Code::kOk);
  for (size_t i = 0; i < 16; i += 2) EXPECT_EQ(PatternErrors(to.at(i), 4096, 1, i * 4096), "");
  EXPECT_EQ(PatternErrors(to.at(1), 4096, 1, 4096), "");
  EXPECT_EQ(*to.at(3), std::byte{0});
}

TEST_F(Pull, NothingMovesAfterTheDeadline) {
  const Pages from(1);
  const Pages to(1);
  FillPattern(from.at(0), 4096, 1);
  const std::vector<Move> plain{Plain(to.at(0), from.at(0), 4096)};
  const std::vector<Move> mapped{{to.at(0), from.at(0), 0, 4096}};
  EXPECT_EQ(PullStep(Self(), plain, BootClock::now()), Code::kTimedOut);
  EXPECT_EQ(PullStep(Self(), mapped, BootClock::now()), Code::kTimedOut);
  EXPECT_EQ(*to.at(0), std::byte{0});
}

TEST_F(Pull, MissingPagesOnEitherSideAreNamed) {
  const Pages from(4);
  const Pages to(4);
  from.Remove(2);
  const std::vector<Move> source{Plain(to.at(0), from.at(0), 4 * 4096)};
  EXPECT_EQ(PullStep(Self(), source, kNever), Code::kInvalidArgument);
  from.Remove(0);
  EXPECT_EQ(PullStep(Self(), source, kNever), Code::kInvalidArgument);
  const Pages good(4);
  to.Remove(3);
  const std::vector<Move> target{Plain(to.at(0), good.at(0), 4 * 4096)};
  EXPECT_EQ(PullStep(Self(), target, kNever), Code::kInvalidArgument);
}

TEST_F(Pull, AnotherProcessUnderTheSameNumberIsFoundOut) {
  const Pages from(1);
  const Pages to(1);
  Origin other = Self();
  other.cell.token[0] ^= 1;
  const std::vector<Move> moves{Plain(to.at(0), from.at(0), 4096)};
  EXPECT_EQ(PullStep(other, moves, kNever), Code::kUnavailable);
  EXPECT_EQ(ProbeCell(other.pid, other.cell), EBADMSG);
  EXPECT_EQ(ProbeCell(Self().pid, Self().cell), 0);
  other.cell.address = 8;  // no memory there
  EXPECT_EQ(PullStep(other, moves, kNever), Code::kUnavailable);
}

TEST_F(Pull, WithoutCmaOnlyMappedMemoryMoves) {
  const Pages from(1);
  const Pages to(1);
  Origin refused = Self();
  refused.cma_error = EPERM;
  const std::vector<Move> plain{Plain(to.at(0), from.at(0), 4096)};
  const std::vector<Move> mapped{{to.at(0), from.at(0), 0, 4096}};
  EXPECT_EQ(PullStep(refused, plain, kNever), Code::kUnsupported);
  EXPECT_EQ(PullStep(refused, mapped, kNever), Code::kOk);
}

TEST(LocalSpin, ShrinksWhenItCatchesNothingAndOpensWhenItWould) {
  Spin spin(std::chrono::microseconds(64));
  Time now{};
  const auto spun = [&] {
    spin.Begin(now);
    const Time begin = now;
    while (spin.Continue(now)) now += std::chrono::microseconds(1);
    return now - begin;
  };
  EXPECT_EQ(spun(), std::chrono::microseconds(64));
  EXPECT_EQ(spun(), std::chrono::microseconds(32));
  for (int i = 0; i < 10; ++i) spun();
  EXPECT_LE(spun(), std::chrono::microseconds(1));
  spin.Found(now + std::chrono::seconds(1));  // long after: spinning would not have caught it
  EXPECT_LE(spun(), std::chrono::microseconds(1));
  spin.Begin(now);
  spin.Found(now + std::chrono::microseconds(20));
  EXPECT_EQ(spun(), std::chrono::microseconds(64));
}

}  // namespace
}  // namespace moonpool::local
