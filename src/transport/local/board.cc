#include "transport/local/board.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/random.h"
#include "base/str.h"
#include "transport/local/mapping.h"

namespace moonpool::local {
namespace {

constexpr uint64_t kBoardMagic = 0x0000003144524f42;  // "BORD1"
constexpr uint32_t kSlots = memory::RegionTable::kRegionsMax;

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

struct Slot {
  Word word;
  Word address;
  Word size;
  Word arena_offset;
  Word arena_and_rights;  // arena << 32 | rights
  Word proof;
};

uint64_t OpenWord(uint32_t generation) { return uint64_t{generation} << 32 | 1; }

uint64_t Proof(const RegionKey& key, uint64_t nonce) {
  return SipHash({key.access_key, nonce}, uint64_t{key.generation} << 32 | key.slot);
}

}  // namespace

struct BoardPage {
  Word magic;
  Word serving;
  Word nonce;
  Word slots;  // ever used
  std::array<Word, 508> zero;
  std::array<Slot, kSlots> slot;
};
static_assert(sizeof(BoardPage) == 4096 + sizeof(Slot) * size_t{kSlots});

uint64_t SipHash(const std::array<uint64_t, 2>& key, uint64_t word) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575;
  uint64_t v1 = key[1] ^ 0x646f72616e646f6d;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261;
  uint64_t v3 = key[1] ^ 0x7465646279746573;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  const uint64_t length = uint64_t{8} << 56;  // one full word, then the length
  for (const uint64_t block : {word, length}) {
    v3 ^= block;
    rounds(2);
    v0 ^= block;
  }
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

Result<std::unique_ptr<RegionBoard>> RegionBoard::Create() {
  const UniqueFd memory(memfd_create("moonpool-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sparse: only the pages of slots in use take memory.
  if (!memory.valid() || ftruncate(memory.get(), sizeof(BoardPage)) != 0) {
    return Status(Code::kUnsupported, Str("region board: memfd: ", std::strerror(errno)));
  }
  void* data =
      mmap(nullptr, sizeof(BoardPage), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED) {
    return Status(Code::kUnsupported, Str("region board: mmap: ", std::strerror(errno)));
  }
  UniqueFd shared = OpenForReading(memory.get());
  const bool sealed =
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0;
  if (!sealed || !shared.valid()) {
    const int error = errno;
    munmap(data, sizeof(BoardPage));
    return Status(Code::kUnsupported, Str("region board: ", sealed ? "/proc/self/fd" : "seal", ": ",
                                          std::strerror(error)));
  }
  auto* page = static_cast<BoardPage*>(data);  // all zero: closed entries
  page->nonce.store(SecureUint64(), std::memory_order_relaxed);
  page->magic.store(kBoardMagic, std::memory_order_relaxed);
  page->serving.store(1, std::memory_order_release);
  return std::unique_ptr<RegionBoard>(new RegionBoard(page, std::move(shared)));
}

RegionBoard::~RegionBoard() { munmap(page_, sizeof(BoardPage)); }

void RegionBoard::RegionOpened(const RegionInfo& info) {
  MOONPOOL_CHECK(info.key.slot < kSlots);
  Slot& slot = page_->slot[info.key.slot];
  slot.address.store(info.address, std::memory_order_relaxed);
  slot.size.store(info.size, std::memory_order_relaxed);
  slot.arena_offset.store(info.arena_offset, std::memory_order_relaxed);
  slot.arena_and_rights.store(uint64_t{info.arena} << 32 | static_cast<uint64_t>(info.rights),
                              std::memory_order_relaxed);
  slot.proof.store(Proof(info.key, page_->nonce.load(std::memory_order_relaxed)),
                   std::memory_order_relaxed);
  if (page_->slots.load(std::memory_order_relaxed) <= info.key.slot) {
    page_->slots.store(info.key.slot + 1, std::memory_order_relaxed);
  }
  // Publishes the fields above to Check.
  slot.word.store(OpenWord(info.key.generation), std::memory_order_release);
}

void RegionBoard::RegionClosed(const RegionInfo& info) {
  // An exchange, not a store: whatever its caller does to the memory afterwards stays behind it.
  page_->slot[info.key.slot].word.exchange(0, std::memory_order_seq_cst);
}

void RegionBoard::StopServing() { page_->serving.exchange(0, std::memory_order_seq_cst); }

Result<std::unique_ptr<BoardView>> BoardView::Map(int fd) {
  struct stat about {};
  if (!IsSealed(fd) || fstat(fd, &about) != 0 ||
      about.st_size != static_cast<off_t>(sizeof(BoardPage))) {
    return Status(Code::kInvalidArgument, "region board: not a sealed memfd of the right size");
  }
  void* data = mmap(nullptr, sizeof(BoardPage), PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return Status(Code::kUnavailable, Str("region board: mmap: ", std::strerror(errno)));
  }
  const auto* page = static_cast<const BoardPage*>(data);
  std::unique_ptr<BoardView> view(new BoardView(page));
  if (page->magic.load(std::memory_order_relaxed) != kBoardMagic) {
    return Status(Code::kInvalidArgument, "region board: wrong magic");
  }
  return view;
}

BoardView::~BoardView() { munmap(const_cast<BoardPage*>(page_), sizeof(BoardPage)); }

Code BoardView::Check(const RegionKey& key, Entry* entry) const {
  if (page_->serving.load(std::memory_order_acquire) != 1) return Code::kUnavailable;
  if (key.slot >= kSlots) return Code::kStale;
  const Slot& slot = page_->slot[key.slot];
  entry->slot = key.slot;
  entry->word = slot.word.load(std::memory_order_acquire);  // pairs with RegionOpened
  if (entry->word != OpenWord(key.generation)) return Code::kStale;
  entry->address = slot.address.load(std::memory_order_relaxed);
  entry->size = slot.size.load(std::memory_order_relaxed);
  entry->arena_offset = slot.arena_offset.load(std::memory_order_relaxed);
  const uint64_t arena_and_rights = slot.arena_and_rights.load(std::memory_order_relaxed);
  const uint64_t proof = slot.proof.load(std::memory_order_relaxed);
  if (Still(*entry) != Code::kOk) return Code::kStale;
  if (proof != Proof(key, page_->nonce.load(std::memory_order_relaxed))) return Code::kStale;
  entry->arena = static_cast<uint32_t>(arena_and_rights >> 32);
  const auto rights = static_cast<Rights>(arena_and_rights & 3);
  return Allows(rights, Rights::kRead) ? Code::kOk : Code::kInvalidArgument;
}

Code BoardView::Still(const Entry& entry) const {
  // What was read before is ordered before the look at the word (a sequence lock's reader).
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t word = page_->slot[entry.slot].word.load(std::memory_order_relaxed);
  if (word != entry.word) return Code::kStale;
  return page_->serving.load(std::memory_order_relaxed) == 1 ? Code::kOk : Code::kUnavailable;
}

bool BoardView::AnyArena() const {
  const uint64_t used = std::min<uint64_t>(page_->slots.load(std::memory_order_relaxed), kSlots);
  for (const Slot& slot : std::span(page_->slot).first(used)) {
    if (slot.word.load(std::memory_order_relaxed) == 0) continue;
    const uint64_t arena = slot.arena_and_rights.load(std::memory_order_relaxed) >> 32;
    if (arena != kNoArena) return true;
  }
  return false;
}

}  // namespace moonpool::local
