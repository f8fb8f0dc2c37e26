#include "transport/local/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/str.h"

namespace moonpool::local {

Result<std::shared_ptr<const Mapping>> Mapping::Map(int fd, uint64_t size) {
  struct stat about {};
  if (size == 0 || !IsSealed(fd) || fstat(fd, &about) != 0 || about.st_size < 0 ||
      static_cast<uint64_t>(about.st_size) < size) {
    return Status(Code::kInvalidArgument,
                  Str("arena of ", size, " bytes: not a memfd sealed against shrinking"));
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return Status(Code::kExhausted, Str("arena of ", size, " bytes: ", std::strerror(errno)));
  }
  madvise(data, size, MADV_HUGEPAGE);  // a hint; only shared memory with huge pages heeds it
  return std::make_shared<const Mapping>(static_cast<const std::byte*>(data), size);
}

Mapping::~Mapping() { munmap(const_cast<std::byte*>(data_), size_); }

bool IsSealed(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

UniqueFd OpenForReading(int fd) {
  return UniqueFd(open(Str("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace moonpool::local
