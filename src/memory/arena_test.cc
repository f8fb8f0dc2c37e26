#include "memory/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "memory/arena_set.h"

namespace moonpool::memory {
namespace {

using testing::HasSubstr;

std::unique_ptr<Arena> Make(const ArenaOptions& options) {
  auto made = Arena::Create(options);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

TEST(Arena, IsZeroWritableAndRoundedToPages) {
  const auto arena = Make({.size = 5000});
  EXPECT_EQ(arena->size() % static_cast<size_t>(sysconf(_SC_PAGESIZE)), 0u);
  EXPECT_GE(arena->size(), 5000u);
  EXPECT_EQ(arena->data()[4999], std::byte{0});
  std::memset(arena->data(), 1, arena->size());
  EXPECT_EQ(arena->note(), "");
}

TEST(Arena, TheDescriptorShowsTheSameBytesToWhoMapsIt) {
  const auto arena = Make({.size = 4096});
  void* view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  std::memcpy(arena->data(), "seen", 5);
  EXPECT_STREQ(static_cast<const char*>(view), "seen");
  munmap(view, 4096);
}

TEST(Arena, MappedPagesOutliveTheArena) {
  auto arena = Make({.size = 4096});
  void* view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  std::memcpy(arena->data(), "kept", 5);
  arena.reset();
  EXPECT_STREQ(static_cast<const char*>(view), "kept");
  munmap(view, 4096);
}

TEST(Arena, WhoHasTheDescriptorCanNeitherWriteNorResize) {
  const auto arena = Make({.size = 8192});
  if (arena->note() != "") GTEST_SKIP() << "this kernel does not seal: " << arena->note();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(pwrite(arena->fd(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(arena->fd(), 4096), -1);
  EXPECT_EQ(ftruncate(arena->fd(), 16384), -1);
  void* view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(mprotect(view, 4096, PROT_READ | PROT_WRITE), -1);
  munmap(view, 4096);
}

TEST(Arena, TheDescriptorIsNotInheritedByPrograms) {
  EXPECT_NE(fcntl(Make({.size = 1})->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Arena, HugePagesAreAWishWhoseRefusalIsNoted) {
  const auto arena = Make({.size = 3 << 20, .huge_pages = true});
  std::memset(arena->data(), 1, arena->size());
  if (arena->note().empty()) {
    EXPECT_EQ(arena->size() % (2 << 20), 0u);
  } else {
    EXPECT_THAT(arena->note(), HasSubstr("2 MiB pages"));
  }
}

TEST(Arena, ANodeThatDoesNotExistIsNoted) {
  const auto arena = Make({.size = 4096, .numa_node = 1000});
  EXPECT_THAT(arena->note(), HasSubstr("node 1000"));
  arena->data()[0] = std::byte{1};
}

TEST(Arena, BadOptionsAreNamed) {
  EXPECT_THAT(Arena::Create({.size = 0}).status().message(), HasSubstr("size"));
  EXPECT_THAT(Arena::Create({.size = 1, .numa_node = -2}).status().message(),
              HasSubstr("numa_node"));
  EXPECT_THAT(Arena::Create({.size = 1, .numa_node = 4096}).status().message(),
              HasSubstr("numa_node"));
  EXPECT_EQ(Arena::Create({.size = SIZE_MAX}).code(), Code::kExhausted);
  EXPECT_EQ(Arena::Create({.size = SIZE_MAX / 8}).code(), Code::kExhausted);
}

uint64_t Address(const Arena& arena) { return reinterpret_cast<uint64_t>(arena.data()); }

TEST(ArenaSet, FindsTheArenaAroundARange) {
  ArenaSet set;
  const std::shared_ptr<const Arena> a = Make({.size = 8192});
  const std::shared_ptr<const Arena> b = Make({.size = 8192});
  const uint32_t number_a = set.Add(a);
  const uint32_t number_b = set.Add(b);
  EXPECT_NE(number_a, number_b);
  const auto place = set.Find(Address(*b) + 100, 8092);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->arena, number_b);
  EXPECT_EQ(place->offset, 100u);
  EXPECT_FALSE(set.Find(Address(*b) + 100, 8093).has_value());
  EXPECT_FALSE(set.Find(Address(*b) + 100, UINT64_MAX).has_value());
  EXPECT_EQ(set.Get(number_a), a);
}

TEST(ArenaSet, ARemovedArenaIsGoneAndItsNumberIsNotUsedAgain) {
  ArenaSet set;
  std::shared_ptr<const Arena> arena = Make({.size = 4096});
  const uint64_t address = Address(*arena);
  const std::weak_ptr<const Arena> watch = arena;
  const uint32_t number = set.Add(std::move(arena));
  set.Remove(number);
  set.Remove(number);
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(set.Get(number), nullptr);
  EXPECT_FALSE(set.Find(address, 1).has_value());
  EXPECT_NE(set.Add(Make({.size = 1})), number);
}

}  // namespace
}  // namespace moonpool::memory
