#pragma once

// One accepted connection, as its serving thread sees it: the handshake, then one answer per
// packet. Knows nothing of threads, polling or accepting (server.h).
//
// Threads: thread-bound to the serving thread. Not for use after a call returned false.

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/fd.h"
#include "transport/local/identity.h"
#include "transport/local/mapping.h"
#include "transport/local/pull.h"
#include "transport/local/server.h"
#include "transport/local/socket.h"
#include "transport/local/wire.h"

namespace moonpool::local {

// What the connections of one serving thread share: room that is reused from request to request.
struct Workspace {
  explicit Workspace(const Server::Parts& parts_in) : parts(parts_in) {}
  const Server::Parts& parts;
  std::atomic<bool> stop{false};
  Write write;
  std::vector<RegionInfo> regions;  // of write.keys
  std::vector<uint16_t> entered;    // keys entered for the step being made
  std::vector<Move> moves;
};

class Connection {
 public:
  Connection(UniqueFd fd, Time hello_by) : fd_(std::move(fd)), hello_by_(hello_by) {}

  int fd() const { return fd_.get(); }
  bool open() const { return open_; }          // the handshake is done
  Time hello_by() const { return hello_by_; }  // when a connection that is not open is closed
  bool exports() const { return !exported_.empty(); }

  // Answers one packet. False: close the connection, because it ended or because of `why`.
  bool Handle(Workspace& work, Packet packet, std::string* why);

  // Tells the peer which arenas have gone. False: close the connection.
  bool DropArenas(Workspace& work);

 private:
  bool HandleHello(Workspace& work, std::string_view message, std::string* why);
  bool HandleGetArena(Workspace& work, uint32_t number);
  bool HandleArena(const ArenaMessage& message, UniqueFd fd);
  bool HandleWrite(Workspace& work, std::string_view message);
  Code CheckWrite(Workspace& work) const;
  Code PullWrite(Workspace& work) const;
  Code EnterAndPull(Workspace& work, Time deadline) const;
  const std::byte* Mapped(const Write& write, const WirePiece& piece) const;

  const UniqueFd fd_;
  const Time hello_by_;
  bool open_ = false;
  Origin origin_;
  std::map<uint32_t, std::shared_ptr<const Mapping>> arenas_;  // the peer's
  std::set<uint32_t> exported_;                                // ours that the peer has
};

}  // namespace moonpool::local
