#pragma once

// Arena: one mapping of shareable memory (memfd), which other processes of the host may map through
// its descriptor. Huge pages and a NUMA node on request; falls back to plain pages when the kernel
// has none, and says so (`note`).
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
  // kInvalidArgument: size 0. kExhausted: the kernel gave no memory.
  static Result<std::unique_ptr<Arena>> Create(const ArenaOptions& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // as rounded
  int fd() const { return fd_.get(); }
  const std::string& note() const { return note_; }  // empty, or what was asked and not given

 private:
  Arena(std::byte* data, size_t size, UniqueFd fd, std::string note);
  std::byte* data_;
  size_t size_;
  UniqueFd fd_;
  std::string note_;
};

}  // namespace moonpool::memory
