#include "transport/local/connection.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/str.h"
#include "memory/arena_set.h"
#include "memory/region_table.h"

namespace moonpool::local {
namespace {

Time TimeOf(int64_t nanoseconds) { return Time(Duration(nanoseconds)); }

}  // namespace

bool Connection::Handle(Workspace& work, Packet packet, std::string* why) {
  const std::string_view bytes = packet.bytes;
  const auto kind = static_cast<Kind>(KindOf(bytes));
  if (!open_) {
    if (kind == Kind::kHello) return HandleHello(work, bytes, why);
    *why = "the first packet is not a greeting";
    return false;
  }
  ArenaMessage arena;
  bool valid = false;
  switch (kind) {
    case Kind::kWrite:
      valid = !packet.fd.valid() && HandleWrite(work, bytes);
      break;
    case Kind::kGetArena:
      valid = DecodeArena(bytes, &arena) && HandleGetArena(work, arena.number);
      break;
    case Kind::kArena:
      valid = DecodeArena(bytes, &arena) && HandleArena(arena, std::move(packet.fd));
      break;
    case Kind::kDropArena:
      valid = DecodeArena(bytes, &arena);
      if (valid) arenas_.erase(arena.number);
      break;
    default:
      break;
  }
  if (!valid) *why = Str("malformed packet of kind ", static_cast<uint32_t>(kind));
  return valid;
}

bool Connection::HandleHello(Workspace& work, std::string_view message, std::string* why) {
  const Server::Parts& parts = work.parts;
  Hello hello;
  Welcome welcome;
  welcome.id = parts.env.self;
  if (!DecodeHello(message, &hello)) {
    *why = "malformed greeting";
    return false;
  }
  const PeerProcess peer = ProcessAt(fd_.get());
  const uid_t self = geteuid();
  if (hello.version != kVersion) {
    welcome.code = Code::kUnsupported;
    welcome.reason = Str("version ", hello.version, ", this is ", kVersion);
  } else if (peer.uid != self && peer.uid != 0) {
    // Whoever gets an arena's descriptor can read all of it.
    welcome.code = Code::kUnsupported;
    welcome.reason = Str("user ", peer.uid, " may not share memory of user ", self);
  } else if (hello.to != parts.env.self) {
    welcome.code = Code::kStale;
    welcome.reason = "another process, or an earlier one of that name, was meant";
  }
  if (welcome.code == Code::kOk) {
    welcome.cell = parts.cell;
    origin_.pid = peer.pid;
    origin_.cell = hello.cell;
    origin_.cma_error = ProbeCell(peer.pid, hello.cell);
    welcome.cma_error = origin_.cma_error;
  } else {
    *why = welcome.reason;
  }
  welcome.clock = BootClock::now().time_since_epoch().count();
  const bool sends_board = welcome.code == Code::kOk && hello.wants_board;
  const int error = Send(fd_.get(), EncodeWelcome(welcome), sends_board ? parts.board_fd : -1);
  open_ = welcome.code == Code::kOk && error == 0;
  return open_;
}

bool Connection::HandleGetArena(Workspace& work, uint32_t number) {
  ArenaMessage answer;
  answer.number = number;
  const auto arena = work.parts.env.arenas.Get(number);
  UniqueFd fd;
  if (arena != nullptr) fd = OpenForReading(arena->fd());
  if (fd.valid()) {
    answer.size = arena->size();
    exported_.insert(number);
  }
  return Send(fd_.get(), BytesOf(answer), fd.get()) == 0;
}

bool Connection::HandleArena(const ArenaMessage& message, UniqueFd fd) {
  if (!fd.valid()) return false;
  if (arenas_.size() >= kArenasMax && !arenas_.contains(message.number)) return true;  // CMA, then
  // One that cannot be mapped is done without, too.
  auto mapping = Mapping::Map(fd.get(), message.size);
  if (mapping.ok()) {
    arenas_[message.number] = *std::move(mapping);
  } else {
    arenas_.erase(message.number);
  }
  return true;
}

bool Connection::DropArenas(Workspace& work) {
  for (auto it = exported_.begin(); it != exported_.end();) {
    if (work.parts.env.arenas.Get(*it) != nullptr) {
      ++it;
      continue;
    }
    ArenaMessage gone;
    gone.kind = Kind::kDropArena;
    gone.number = *it;
    const int error = Send(fd_.get(), BytesOf(gone));
    if (error == EAGAIN) return true;  // at the next look
    if (error != 0) return false;
    it = exported_.erase(it);
  }
  return true;
}

bool Connection::HandleWrite(Workspace& work, std::string_view message) {
  Write& write = work.write;
  if (!DecodeWrite(message, &write)) return false;
  Reply reply;
  reply.id = write.id;
  reply.code = CheckWrite(work);
  if (reply.code == Code::kOk) reply.code = PullWrite(work);
  Counters& counters = work.parts.counters;
  const bool refused = reply.code == Code::kStale || reply.code == Code::kInvalidArgument;
  (refused ? counters.requests_refused : counters.slices_served)
      .fetch_add(1, std::memory_order_relaxed);
  // A peer that does not read its answers loses the connection ("malformed": it asks for more than
  // it hears).
  return Send(fd_.get(), BytesOf(reply)) == 0;
}

// Everything is checked before the first byte is stored, so a bad piece leaves memory untouched.
Code Connection::CheckWrite(Workspace& work) const {
  memory::RegionTable& table = work.parts.env.regions;
  const Write& write = work.write;
  work.regions.resize(write.keys.size());
  for (size_t i = 0; i < write.keys.size(); ++i) {
    const Code code = table.Enter(write.keys[i], Rights::kWrite, &work.regions[i]);
    if (code != Code::kOk) return code;
    table.Leave(write.keys[i]);
  }
  for (const WirePiece& piece : write.pieces) {
    const RegionInfo& region = work.regions[piece.key];
    if (piece.size == 0 || !RangeInside(piece.remote, piece.size, region.address, region.size)) {
      return Code::kInvalidArgument;
    }
  }
  return Code::kOk;
}

// Where a piece's source is mapped here, or null. The mapped copy is for shared memory on both
// sides: only then do both ranges surely have pages, and a copy by the kernel reports if not.
const std::byte* Connection::Mapped(const Write& write, const WirePiece& piece) const {
  if (piece.source == kNoSource) return nullptr;
  const WireSource& source = write.sources[piece.source];
  const auto it = arenas_.find(source.arena);
  if (it == arenas_.end() || piece.local < source.base) return nullptr;
  return it->second->At(piece.local - source.base, piece.size);
}

Code Connection::PullWrite(Workspace& work) const {
  const Write& write = work.write;
  const Time deadline = TimeOf(write.deadline);
  uint64_t stored = 0;
  size_t index = 0;
  uint32_t offset = 0;
  while (index < write.pieces.size()) {
    if (work.stop.load(std::memory_order_relaxed)) return Code::kUnavailable;
    work.moves.clear();
    work.entered.clear();
    size_t bytes = 0;
    while (index < write.pieces.size() && bytes < kStepBytes && work.moves.size() < kStepMoves) {
      const WirePiece& piece = write.pieces[index];
      const uint32_t size =
          static_cast<uint32_t>(std::min<uint64_t>(piece.size - offset, kStepBytes - bytes));
      const std::byte* mapped = nullptr;
      if (work.regions[piece.key].arena != kNoArena || !origin_.cma()) {
        mapped = Mapped(write, piece);
      }
      // An arena that this side does not have any more; the writer sends it again.
      if (mapped == nullptr && !origin_.cma() && piece.source != kNoSource) return Code::kAgain;
      work.moves.push_back({reinterpret_cast<std::byte*>(piece.remote + offset),
                            mapped == nullptr ? nullptr : mapped + offset, piece.local + offset,
                            size});
      if (work.entered.empty() || work.entered.back() != piece.key) {
        work.entered.push_back(piece.key);
      }
      bytes += size;
      offset += size;
      if (offset == piece.size) {
        ++index;
        offset = 0;
      }
    }
    const Code code = EnterAndPull(work, deadline);
    if (code != Code::kOk) return code;
    stored += bytes;
  }
  work.parts.counters.bytes_received.fetch_add(stored, std::memory_order_relaxed);
  return Code::kOk;
}

// One step, with its regions entered.
Code Connection::EnterAndPull(Workspace& work, Time deadline) const {
  memory::RegionTable& table = work.parts.env.regions;
  Code code = Code::kOk;
  size_t entered = 0;
  for (; entered < work.entered.size(); ++entered) {
    const RegionKey& key = work.write.keys[work.entered[entered]];
    code = table.Enter(key, Rights::kWrite, nullptr);
    if (code != Code::kOk) break;
  }
  if (code == Code::kOk) code = PullStep(origin_, work.moves, deadline);
  for (size_t i = 0; i < entered; ++i) table.Leave(work.write.keys[work.entered[i]]);
  return code;
}

}  // namespace moonpool::local
