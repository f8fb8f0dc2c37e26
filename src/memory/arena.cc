#include "memory/arena.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/str.h"

namespace moonpool::memory {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kSizeMax = size_t{1} << 62;
constexpr unsigned kHuge2MiB = 21u << 26;  // MFD_HUGE_2MB of linux/memfd.h
constexpr int kNodesMax = 1024;

// Preferring is enough: a full node must not make the arena fail.
bool PreferNode(std::byte* data, size_t size, int node) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kNodesMax / kBits> mask{};
  mask[static_cast<size_t>(node) / kBits] = 1UL << (node % kBits);
  return syscall(SYS_mbind, data, size, MPOL_PREFERRED, mask.data(), kNodesMax + 1, 0) == 0;
}

void AddNote(std::string& note, const std::string& text) {
  if (!note.empty()) note += "; ";
  note += text;
}

}  // namespace

// On failure the data is null and the note is the cause.
Arena::Parts Arena::Map(size_t size, size_t page, unsigned flags) {
  Parts parts;
  parts.size = (size + page - 1) / page * page;
  parts.fd = UniqueFd(memfd_create("moonpool-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!parts.fd.valid() || ftruncate(parts.fd.get(), static_cast<off_t>(parts.size)) != 0) {
    parts.note = std::strerror(errno);
    return parts;
  }
  void* data = mmap(nullptr, parts.size, PROT_READ | PROT_WRITE, MAP_SHARED, parts.fd.get(), 0);
  if (data == MAP_FAILED) {
    parts.note = std::strerror(errno);
    return parts;
  }
  parts.data = static_cast<std::byte*>(data);
  return parts;
}

Result<std::unique_ptr<Arena>> Arena::Create(const ArenaOptions& options) {
  if (options.size == 0) return Status(Code::kInvalidArgument, "size: 0, must be at least 1");
  if (options.numa_node < -1 || options.numa_node >= kNodesMax) {
    return Status(Code::kInvalidArgument,
                  Str("numa_node: ", options.numa_node, ", must be -1 .. ", kNodesMax - 1));
  }
  if (options.size > kSizeMax) {
    return Status(Code::kExhausted, Str("arena of ", options.size, " bytes: too large"));
  }
  std::string note;
  Parts parts;
  if (options.huge_pages) {
    parts = Map(options.size, kHugePage, MFD_HUGETLB | kHuge2MiB);
    if (parts.data == nullptr) AddNote(note, Str("no 2 MiB pages: ", parts.note));
  }
  if (parts.data == nullptr) {
    parts = Map(options.size, static_cast<size_t>(sysconf(_SC_PAGESIZE)), 0);
    if (parts.data == nullptr) {
      return Status(Code::kExhausted, Str("arena of ", options.size, " bytes: ", parts.note));
    }
    if (options.huge_pages && madvise(parts.data, parts.size, MADV_HUGEPAGE) != 0) {
      AddNote(note, "no transparent huge pages either");
    }
  }
  if (options.numa_node >= 0 && !PreferNode(parts.data, parts.size, options.numa_node)) {
    AddNote(note, Str("not placed on NUMA node ", options.numa_node, ": ", std::strerror(errno)));
  }
  // Nobody shrinks it under a reader's mapping (which would die of SIGBUS), and whoever receives
  // the descriptor can map it read-only alone; our own mapping, made before, stays writable.
  if (fcntl(parts.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    AddNote(note, "size not sealed");
  }
  if (fcntl(parts.fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    AddNote(note, "not sealed against writers");
  }
  parts.note = std::move(note);
  return std::make_unique<Arena>(std::move(parts));
}

Arena::Arena(Parts parts) : parts_(std::move(parts)) {}

Arena::~Arena() { munmap(parts_.data, parts_.size); }

}  // namespace moonpool::memory
