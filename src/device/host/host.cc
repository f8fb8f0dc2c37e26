#include "device/host/host.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/str.h"

namespace moonpool::host {
namespace {

constexpr size_t kHugePage = 2 << 20;

class HostDevice final : public device::Device {
 public:
  std::string_view name() const override { return "host"; }

  Result<device::Allocation> Allocate(const device::AllocateOptions& options) override {
    if (options.size == 0) return Status(Code::kInvalidArgument, "size: 0, must be at least 1");
    const size_t page = options.huge_pages ? kHugePage : PageSize();
    if (options.size > SIZE_MAX / 2 - page) {
      return Status(Code::kExhausted, Str("host memory of ", options.size, " bytes: too large"));
    }
    // Larger by a page so that the beginning can be moved up to a whole (huge) page.
    const size_t size = (options.size + page - 1) / page * page;
    const size_t mapped_size = options.huge_pages ? size + page : size;
    void* mapped =
        mmap(nullptr, mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      return Status(Code::kExhausted,
                    Str("host memory of ", size, " bytes: ", std::strerror(errno)));
    }
    auto* begin = static_cast<std::byte*>(mapped);
    if (options.huge_pages) {
      begin = Trim(begin, mapped_size, size);
      madvise(begin, size, MADV_HUGEPAGE);  // a wish; plain pages work as well
    }
    return device::Allocation{begin, size};
  }

  void Free(const device::Allocation& allocation) override {
    MOONPOOL_CHECK(munmap(allocation.data, allocation.size) == 0);
  }

  Status Copy(void* to, const void* from, size_t size) override {
    if (size != 0) std::memcpy(to, from, size);
    return Status::Ok();
  }

  std::string WhoseIs(const void* address) const override {
    const size_t page = PageSize();
    const auto number = reinterpret_cast<uintptr_t>(address) / page * page;
    unsigned char resident = 0;
    if (mincore(reinterpret_cast<void*>(number), page, &resident) != 0) return {};
    int node = -1;
    if (syscall(SYS_get_mempolicy, &node, nullptr, 0, number, MPOL_F_NODE | MPOL_F_ADDR) != 0) {
      return "cpu";  // no NUMA in the kernel, or a sandbox forbids the question
    }
    return Str("cpu:", node);
  }

 private:
  static size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  // Gives back what lies before and behind the aligned `size` bytes.
  static std::byte* Trim(std::byte* mapped, size_t mapped_size, size_t size) {
    const size_t skew = reinterpret_cast<uintptr_t>(mapped) % kHugePage;
    const size_t head = skew == 0 ? 0 : kHugePage - skew;
    const size_t tail = mapped_size - size - head;
    if (head != 0) munmap(mapped, head);
    if (tail != 0) munmap(mapped + head + size, tail);
    return mapped + head;
  }
};

}  // namespace

device::Factory MakeFactory() {
  return {"host", []() -> Result<std::unique_ptr<device::Device>> {
            return std::unique_ptr<device::Device>(std::make_unique<HostDevice>());
          }};
}

}  // namespace moonpool::host
