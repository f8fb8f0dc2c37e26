#pragma once

// The owner: a second process that offers memory, for the rows and floors. Threads: the Owner is thread-compatible.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace moonpool::bench {

struct OwnerOptions {
  std::string transport;  // empty: automatic
  bool checksum = true;
  bool engine_memory = true;  // allocated by the engine (memfd); else malloc
  uint64_t bytes = 0;
};

// What the parent knows of it.
struct Owner {
  pid_t pid = -1;
  std::string address;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint16_t floor_port = 0;
  UniqueFd lifeline;  // closing it ends the owner
};

// Starts this program again as an owner. Ends it in Stop, or when the parent ends.
Result<Owner> StartOwner(const OwnerOptions& options);
void StopOwner(Owner& owner);

// The child's main: argv as StartOwner gave it.
int OwnerMain(int argc, char** argv);

}  // namespace moonpool::bench
