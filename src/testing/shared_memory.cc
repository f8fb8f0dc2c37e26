#include "testing/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace moonpool::testing {
namespace {

size_t WholePages(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (size + page - 1) / page * page;
}

}  // namespace

SharedMemory::SharedMemory(size_t size)
    : fd_(::memfd_create("moonpool-test", MFD_CLOEXEC)), size_(WholePages(size)) {
  MOONPOOL_CHECK(fd_.valid());
  MOONPOOL_CHECK(::ftruncate(fd_.get(), static_cast<off_t>(size_)) == 0);
  Map();
}

SharedMemory::SharedMemory(UniqueFd fd, size_t size) : fd_(std::move(fd)), size_(WholePages(size)) {
  Map();
}

void SharedMemory::Map() {
  void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  MOONPOOL_CHECK(at != MAP_FAILED);
  data_ = static_cast<std::byte*>(at);
}

SharedMemory::~SharedMemory() { ::munmap(data_, size_); }

}  // namespace moonpool::testing
