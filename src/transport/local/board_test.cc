#include "transport/local/board.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "transport/local/mapping.h"

namespace moonpool::local {
namespace {

class Board : public testing::Test {
 protected:
  Board() : board_(*RegionBoard::Create()), view_(*BoardView::Map(board_->fd())) {}

  RegionInfo Register(uint64_t address, Rights rights = Rights::kReadWrite) {
    return *table_.Register({address, 4096, rights});
  }

  SystemClock clock_;
  memory::RegionTable table_{clock_};
  std::unique_ptr<RegionBoard> board_;
  std::unique_ptr<BoardView> view_;
  BoardView::Entry entry_;
};

TEST_F(Board, ShowsRegionsOpenedBeforeAndAfterItIsWatched) {
  const RegionInfo before = Register(0x10000);
  table_.AddObserver(*board_);
  const RegionInfo after = Register(0x20000);
  ASSERT_EQ(view_->Check(before.key, &entry_), Code::kOk);
  EXPECT_EQ(entry_.address, 0x10000u);
  EXPECT_EQ(entry_.size, 4096u);
  EXPECT_EQ(entry_.arena, kNoArena);
  ASSERT_EQ(view_->Check(after.key, &entry_), Code::kOk);
  EXPECT_EQ(entry_.address, 0x20000u);
  EXPECT_EQ(view_->Still(entry_), Code::kOk);
}

TEST_F(Board, DeregistrationEndsWhatWasFound) {
  table_.AddObserver(*board_);
  const RegionInfo info = Register(0x10000);
  ASSERT_EQ(view_->Check(info.key, &entry_), Code::kOk);
  ASSERT_TRUE(table_.Deregister(0x10000, kNever).ok());
  EXPECT_EQ(view_->Still(entry_), Code::kStale);
  EXPECT_EQ(view_->Check(info.key, &entry_), Code::kStale);
}

TEST_F(Board, TheNextRegionOfASlotDoesNotReviveTheLast) {
  table_.AddObserver(*board_);
  const RegionInfo first = Register(0x10000);
  ASSERT_EQ(view_->Check(first.key, &entry_), Code::kOk);
  ASSERT_TRUE(table_.Deregister(0x10000, kNever).ok());
  const RegionInfo second = Register(0x10000);
  ASSERT_EQ(second.key.slot, first.key.slot);
  EXPECT_EQ(view_->Still(entry_), Code::kStale);
  EXPECT_EQ(view_->Check(first.key, &entry_), Code::kStale);
  EXPECT_EQ(view_->Check(second.key, &entry_), Code::kOk);
}

TEST_F(Board, ADeregistrationThatTimedOutLeavesTheRegionOpen) {
  table_.AddObserver(*board_);
  const RegionInfo info = Register(0x10000);
  ASSERT_EQ(table_.Pin(info.key), Code::kOk);
  EXPECT_EQ(table_.Deregister(0x10000, clock_.Now()).code(), Code::kTimedOut);
  EXPECT_EQ(view_->Check(info.key, &entry_), Code::kOk);
  table_.Unpin(info.key);
}

TEST_F(Board, AWrongKeyIsStaleAndAMissingRightInvalid) {
  table_.AddObserver(*board_);
  const RegionInfo info = Register(0x10000);
  const RegionInfo secret = Register(0x20000, Rights::kWrite);
  RegionKey wrong = info.key;
  wrong.access_key ^= 1;
  EXPECT_EQ(view_->Check(wrong, &entry_), Code::kStale);
  wrong = info.key;
  ++wrong.generation;
  EXPECT_EQ(view_->Check(wrong, &entry_), Code::kStale);
  wrong = info.key;
  wrong.slot = memory::RegionTable::kRegionsMax;
  EXPECT_EQ(view_->Check(wrong, &entry_), Code::kStale);
  EXPECT_EQ(view_->Check(secret.key, &entry_), Code::kInvalidArgument);
}

TEST_F(Board, AfterTheEndOfServiceNothingCounts) {
  table_.AddObserver(*board_);
  const RegionInfo info = Register(0x10000);
  ASSERT_EQ(view_->Check(info.key, &entry_), Code::kOk);
  board_->StopServing();
  EXPECT_EQ(view_->Still(entry_), Code::kUnavailable);
  EXPECT_EQ(view_->Check(info.key, &entry_), Code::kUnavailable);
}

TEST_F(Board, KnowsWhetherAnyRegionLiesInAnArena) {
  table_.AddObserver(*board_);
  Register(0x10000);
  EXPECT_FALSE(view_->AnyArena());
  ASSERT_TRUE(table_.Register({0x20000, 4096, Rights::kRead, 3, 0}).ok());
  EXPECT_TRUE(view_->AnyArena());
  ASSERT_TRUE(table_.Deregister(0x20000, kNever).ok());
  EXPECT_FALSE(view_->AnyArena());
}

TEST_F(Board, CannotBeWrittenByItsReaders) {
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, board_->fd(), 0), MAP_FAILED);
  EXPECT_NE(ftruncate(board_->fd(), 0), 0);
}

TEST_F(Board, OtherFilesAreNotBoards) {
  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(BoardView::Map(unsealed.get()).code(), Code::kInvalidArgument);
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(BoardView::Map(unsealed.get()).code(), Code::kInvalidArgument);  // the size is wrong
  EXPECT_EQ(BoardView::Map(-1).code(), Code::kInvalidArgument);
}

TEST(LocalMapping, MapsOnlySealedMemoryOfTheSizeClaimed) {
  const UniqueFd memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(memory.get(), 8192), 0);
  EXPECT_EQ(Mapping::Map(memory.get(), 8192).code(), Code::kInvalidArgument);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(Mapping::Map(memory.get(), 8193).code(), Code::kInvalidArgument);
  EXPECT_EQ(Mapping::Map(memory.get(), 0).code(), Code::kInvalidArgument);
  const auto mapping = Mapping::Map(memory.get(), 8192);
  ASSERT_TRUE(mapping.ok()) << mapping.status().ToString();
  EXPECT_NE((*mapping)->At(0, 8192), nullptr);
  EXPECT_NE((*mapping)->At(8192, 0), nullptr);
  EXPECT_EQ((*mapping)->At(1, 8192), nullptr);
  EXPECT_EQ((*mapping)->At(UINT64_MAX, 2), nullptr);
  EXPECT_EQ((*mapping)->At(8193, 0), nullptr);
}

// The reference vector of the SipHash paper's authors, shortened to the one-word messages that we
// hash: key 00..0f, message 00..07.
TEST(LocalSipHash, AgreesWithThePublishedVector) {
  EXPECT_EQ(SipHash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, 0x0706050403020100),
            0x93f5f5799a932462u);
}

}  // namespace
}  // namespace moonpool::local
