#include "transport/local/identity.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/random.h"
#include "base/str.h"

namespace moonpool::local {
namespace {

// From linux/socket.h of Linux 6.5; older C libraries do not name it.
constexpr int kSoPeerPidfd = 77;

bool ParseBootId(const std::string& text, Token* boot) {
  size_t digits = 0;
  for (const char c : text) {
    if (c == '-') continue;
    int value = 0;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else {
      return false;
    }
    if (digits == 2 * boot->size()) return false;
    uint8_t& byte = (*boot)[digits / 2];
    byte = static_cast<uint8_t>(byte << 4 | value);
    ++digits;
  }
  return digits == 2 * boot->size();
}

}  // namespace

Result<Host> ThisHost() {
  Host host;
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  if (!ParseBootId(text, &host.boot)) {
    return Status(Code::kUnsupported, "cannot read /proc/sys/kernel/random/boot_id");
  }
  struct stat net {};
  struct stat pid {};
  if (stat("/proc/self/ns/net", &net) != 0 || stat("/proc/self/ns/pid", &pid) != 0) {
    return Status(Code::kUnsupported, Str("/proc/self/ns: ", std::strerror(errno)));
  }
  host.net_namespace = net.st_ino;
  host.pid_namespace = pid.st_ino;
  return host;
}

TokenCell::TokenCell() : token_(std::make_unique<Token>()) { SecureBytes(*token_); }

TokenCell::~TokenCell() { explicit_bzero(token_->data(), token_->size()); }

PeerProcess ProcessAt(int socket) {
  PeerProcess process;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return process;
  process.pid = credentials.pid;
  process.uid = credentials.uid;
  int pidfd = -1;
  size = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) == 0) {
    process.pidfd.Reset(pidfd);
  } else if (process.pid > 0) {
    // The peer answers on this socket afterwards, so the number was still its own now.
    process.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  }
  return process;
}

int ProbeCell(pid_t pid, const Cell& cell) {
  if (pid <= 0) return ESRCH;
  Token seen{};
  iovec here{seen.data(), seen.size()};
  iovec there{reinterpret_cast<void*>(cell.address), seen.size()};
  const ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (got < 0) return errno;
  return static_cast<size_t>(got) == seen.size() && seen == cell.token ? 0 : EBADMSG;
}

}  // namespace moonpool::local
