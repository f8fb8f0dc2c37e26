#pragma once

// The contract of a device: something that has memory. Host memory is device/host; each accelerator
// is a folder of its own.
//
// Not responsible for: registering memory for transfers (memory/region_table.h), memory shared with
// other processes (memory/arena.h), choosing who allocates where (the callers).
//
// Threads: thread-safe. Ownership: an Allocation is the caller's until Free; a device outlives what
// it allocated. Errors: kInvalidArgument names the field; kExhausted: the device has no memory
// left; kUnsupported: this machine lacks the device.
//
// A new device is a folder device/<name> with <name>.h that offers `Factory MakeFactory()`; the
// list of the built-in ones is generated (device/builtin.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace moonpool::device {

struct AllocateOptions {
  size_t size = 0;          // bytes, at least 1; rounded up to pages
  bool huge_pages = false;  // ask for large pages where the device knows such; never an error
};

struct Allocation {
  std::byte* data = nullptr;  // aligned to a page, zeroed
  size_t size = 0;            // as rounded
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;  // constant: "host", "cuda", …

  virtual Result<Allocation> Allocate(const AllocateOptions& options) = 0;
  // Requires: `allocation` came from Allocate of this device and was not freed.
  virtual void Free(const Allocation& allocation) = 0;

  // Copies between host memory and memory of this device, or within one; returns when the bytes are
  // there. Ranges do not overlap.
  virtual Status Copy(void* to, const void* from, size_t size) = 0;

  // Where the byte at `address` lies, if that is memory of this device: its location in the
  // topology's words ("cpu:1", "cuda:3"), or just the kind ("cpu") when the kernel does not say.
  // Empty: not this device's.
  virtual std::string WhoseIs(const void* address) const = 0;
};

// One per leaf.
struct Factory {
  std::string name;
  // kUnsupported with the reason when this machine has no such device.
  std::function<Result<std::unique_ptr<Device>>()> create;
};

}  // namespace moonpool::device
