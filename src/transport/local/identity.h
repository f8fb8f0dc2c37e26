#pragma once

// Who and where: this host's identity, the process at the other end of a socket, and the proof that
// process_vm_readv reads that process and no other (a token cell).
//
// Why a token: a process id is reused after its process has died, and a program may replace itself
// (exec). Each CMA call reads the peer's token as its last element; all elements of one call read
// one address space, so a right token means that the data came from the right process.
//
// Threads: pure functions; TokenCell is constant.

#include <sys/types.h>

#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "transport/local/wire.h"

namespace moonpool::local {

// kUnsupported: no /proc that says so.
Result<Host> ThisHost();

// Our own token, where peers read it.
class TokenCell {
 public:
  TokenCell();
  ~TokenCell();  // wipes it
  TokenCell(const TokenCell&) = delete;
  TokenCell& operator=(const TokenCell&) = delete;
  Cell cell() const { return {reinterpret_cast<uint64_t>(token_.get()), *token_}; }

 private:
  const std::unique_ptr<Token> token_;
};

// A process whose memory we may read.
struct Origin {
  pid_t pid = 0;      // as seen from here; 0: not visible
  int cma_error = 0;  // errno with which the kernel refused process_vm_readv, or 0
  Cell cell;
  bool cma() const { return cma_error == 0; }
};

struct PeerProcess {
  pid_t pid = 0;
  uid_t uid = 0;
  UniqueFd pidfd;  // readable once the process has ended; may be invalid
};
PeerProcess ProcessAt(int socket);

// Reads the token in the process; 0, or why not (EBADMSG: another token is there).
int ProbeCell(pid_t pid, const Cell& cell);

}  // namespace moonpool::local
