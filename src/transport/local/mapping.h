#pragma once

// Mapping: a peer's memfd, mapped read-only here; and the small checks that make a received
// descriptor safe to map (sealed against shrinking, so that no access dies of SIGBUS).
//
// Threads: constant after Map. Ownership: unmaps when destroyed.

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"

namespace moonpool::local {

class Mapping {
 public:
  // kInvalidArgument: not a memfd sealed against shrinking, or smaller than `size`.
  // kExhausted: the kernel maps no more.
  static Result<std::shared_ptr<const Mapping>> Map(int fd, uint64_t size);
  Mapping(const std::byte* data, size_t size) : data_(data), size_(size) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // The bytes at `offset`, or null when [offset, offset + size) is not all inside.
  const std::byte* At(uint64_t offset, uint64_t size) const {
    return offset <= size_ && size <= size_ - offset ? data_ + offset : nullptr;
  }
  size_t size() const { return size_; }

 private:
  const std::byte* const data_;
  const size_t size_;
};

// A memfd that cannot shrink.
bool IsSealed(int fd);

// The same file opened for reading only, so that who receives it cannot write; invalid (errno)
// when the system has no /proc.
UniqueFd OpenForReading(int fd);

}  // namespace moonpool::local
