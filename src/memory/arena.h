#pragma once

// Arena: one mapping of shareable memory (memfd), which other processes of the host may map through
// its descriptor. Huge pages and a NUMA node on request; falls back to plain pages when the kernel
// has none, and says so (`note`).
//
// Sealed: its size never changes, so that a mapping of it never faults; and through the descriptor
// it can be mapped read-only alone. The one writable mapping is data(), made before the seal.
//
// Ownership: unmaps and closes when destroyed; whoever mapped the descriptor keeps the pages alive.
// Threads: constant after Create.

#include <cstddef>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace moonpool::memory {

struct ArenaOptions {
  size_t size = 0;          // bytes; rounded up to pages
  bool huge_pages = false;  // 2 MiB pages (MFD_HUGETLB), else transparent ones where shmem allows
  int numa_node = -1;       // preferred node, or -1
};

class Arena {
 public:
  // kInvalidArgument: size 0, numa_node out of range. kExhausted: the kernel gave no memory.
  static Result<std::unique_ptr<Arena>> Create(const ArenaOptions& options);

 private:
  struct Parts {
    std::byte* data = nullptr;
    size_t size = 0;
    UniqueFd fd;
    std::string note;
  };

 public:
  explicit Arena(Parts parts);  // only Create can name the argument
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return parts_.data; }
  size_t size() const { return parts_.size; }  // as rounded
  int fd() const { return parts_.fd.get(); }
  const std::string& note() const { return parts_.note; }  // empty, or what was asked and not given

 private:
  static Parts Map(size_t size, size_t page, unsigned flags);

  Parts parts_;
};

}  // namespace moonpool::memory
