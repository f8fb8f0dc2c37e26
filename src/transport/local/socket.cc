#include "transport/local/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/str.h"

namespace moonpool::local {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;
};

Name AbstractName(const Token& token) {
  static constexpr std::string_view kPrefix = "moonpool-";
  static constexpr std::string_view kDigits = "0123456789abcdef";
  Name name;
  name.address.sun_family = AF_UNIX;
  char* out = name.address.sun_path + 1;  // the first byte is 0: abstract
  for (const char c : kPrefix) *out++ = c;
  for (const uint8_t byte : token) {
    *out++ = kDigits[byte >> 4];
    *out++ = kDigits[byte & 15];
  }
  name.size = static_cast<socklen_t>(out - reinterpret_cast<char*>(&name.address));
  return name;
}

}  // namespace

Result<UniqueFd> Listen(const Token& token, int backlog) {
  UniqueFd fd(socket(AF_UNIX, kType, 0));
  const Name name = AbstractName(token);
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) != 0 ||
      listen(fd.get(), backlog) != 0) {
    return Status(Code::kUnsupported, Str("abstract unix socket: ", std::strerror(errno)));
  }
  return fd;
}

UniqueFd Connect(const Token& token, int* error) {
  UniqueFd fd(socket(AF_UNIX, kType, 0));
  const Name name = AbstractName(token);
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.size) != 0) {
    *error = errno;
    return UniqueFd();
  }
  *error = 0;
  return fd;
}

int Send(int socket, std::string_view packet, int fd) {
  iovec part{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? errno : 0;
}

Packet Receive(int socket, std::span<char> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  message.msg_control = control.data();
  // Room for one descriptor and no more: CMSG_SPACE pads to where the kernel would put a second one, which nobody
  // would close.
  message.msg_controllen = CMSG_LEN(sizeof(int));
  Packet packet;
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // A peer that closed without reading all leaves ECONNRESET once; what it sent is still there.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) {
    packet.error = errno;
    return packet;
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));  // room for one only was offered
    packet.fd.Reset(fd);
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) packet.error = EBADMSG;
  packet.bytes = {buffer.data(), static_cast<size_t>(got)};
  return packet;
}

Status WaitReadable(int fd, int wake, Time deadline) {
  constexpr int kLongest = 1000;  // ms; then the deadline is looked at again
  while (true) {
    std::array<pollfd, 2> both{pollfd{fd, POLLIN, 0}, pollfd{wake, POLLIN, 0}};
    const int wait_ms = MillisUntil(BootClock::now(), deadline, kLongest);
    const int ready = poll(both.data(), both.size(), wait_ms);
    if (ready < 0 && errno != EINTR) {
      return Status(Code::kUnavailable, Str("poll: ", std::strerror(errno)));
    }
    if (ready > 0 && both[1].revents != 0) return Status(Code::kCancelled, "closing");
    if (ready > 0 && both[0].revents != 0) return Status::Ok();
    if (BootClock::now() >= deadline) return Status(Code::kTimedOut, "no answer");
  }
}

}  // namespace moonpool::local
