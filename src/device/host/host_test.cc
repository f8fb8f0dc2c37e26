#include "device/host/host.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "device/builtin.h"

namespace moonpool::host {
namespace {

std::unique_ptr<device::Device> Make() {
  auto made = MakeFactory().create();
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

bool AllZero(const device::Allocation& memory) {
  return std::all_of(memory.data, memory.data + memory.size,
                     [](std::byte b) { return b == std::byte{0}; });
}

TEST(HostDevice, IsListedAmongTheBuiltInFactories) {
  const auto all = device::BuiltinFactories();
  EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                          [](const device::Factory& f) { return f.name == "host"; }));
}

TEST(HostDevice, MemoryIsPageAlignedRoundedAndZero) {
  auto host = Make();
  auto memory = host->Allocate({.size = 5000});
  ASSERT_TRUE(memory.ok());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data) % page, 0u);
  EXPECT_EQ(memory->size, (5000 + page - 1) / page * page);
  EXPECT_TRUE(AllZero(*memory));
  host->Free(*memory);
}

TEST(HostDevice, HugePagesAreAlignedToTheirSizeAndUsableToTheEnd) {
  auto host = Make();
  auto memory = host->Allocate({.size = (2 << 20) + 1, .huge_pages = true});
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data) % (2 << 20), 0u);
  EXPECT_EQ(memory->size, size_t{4 << 20});
  std::memset(memory->data, 7, memory->size);
  host->Free(*memory);
}

TEST(HostDevice, SizeZeroIsRefusedByName) {
  auto none = Make()->Allocate({.size = 0});
  ASSERT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_NE(none.status().message().find("size"), std::string::npos);
}

TEST(HostDevice, MoreThanTheAddressSpaceIsExhausted) {
  auto host = Make();
  EXPECT_EQ(host->Allocate({.size = SIZE_MAX}).code(), Code::kExhausted);
  EXPECT_EQ(host->Allocate({.size = SIZE_MAX / 4}).code(), Code::kExhausted);
}

TEST(HostDevice, CopiesBytes) {
  auto host = Make();
  const char from[] = "seven letters";
  char to[sizeof(from)] = {};
  ASSERT_TRUE(host->Copy(to, from, sizeof(from)).ok());
  EXPECT_STREQ(to, from);
}

TEST(HostDevice, KnowsItsOwnMemoryAndDeniesWhatIsNotMapped) {
  auto host = Make();
  int local = 0;
  EXPECT_EQ(host->WhoseIs(&local).substr(0, 3), "cpu");
  void* gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  munmap(gone, 4096);
  EXPECT_EQ(host->WhoseIs(gone), "");
}

}  // namespace
}  // namespace moonpool::host
