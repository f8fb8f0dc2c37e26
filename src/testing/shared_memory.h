#pragma once

// SharedMemory: pages that a test and its children both see (a memfd). The descriptor travels
// through Channel::Send; the child opens it with Open.
//
// Ownership: unmaps and closes when destroyed. Failure ends the process: a test without memory says
// nothing. Threads: constant after creation.

#include <cstddef>

#include "base/fd.h"

namespace moonpool::testing {

class SharedMemory {
 public:
  // `size` bytes of zeros, rounded up to pages.
  explicit SharedMemory(size_t size);
  // The pages behind a descriptor that another process's SharedMemory gave.
  SharedMemory(UniqueFd fd, size_t size);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  void Map();

  UniqueFd fd_;
  size_t size_;
  std::byte* data_ = nullptr;
};

}  // namespace moonpool::testing
