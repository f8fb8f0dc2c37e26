#include "engine/batch.h"

#include "base/str.h"

namespace moonpool::engine {

bool RecordFailure(Batch& batch, const Failure& failure) {
  MutexLock lock(batch.mutex);
  if (batch.failing.load(std::memory_order_relaxed)) return false;
  std::string text;
  if (!failure.peer.empty()) text = Str("peer ", failure.peer);
  if (!failure.transport.empty())
    text += Str(text.empty() ? "" : ", ", "transport ", failure.transport);
  if (failure.phase != transport::Phase::kNone)
    text += Str(text.empty() ? "" : ", ", "phase ", transport::PhaseName(failure.phase));
  batch.failure = Status(failure.code, Str(text, text.empty() ? "" : ": ", failure.cause));
  batch.failed_peer = failure.peer;
  batch.failed_transport = failure.transport;
  batch.failed_phase = failure.phase;
  batch.failing.store(true, std::memory_order_release);
  return true;
}

Result<BatchHandle> BatchTable::Add(std::shared_ptr<Batch> batch) {
  MutexLock lock(mutex_);
  if (live_ >= limit_) {
    return Status(Code::kExhausted, Str(limit_, " batches are live (batches_max); release some"));
  }
  uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Entry& entry = entries_[index];
  const BatchHandle handle = (static_cast<uint64_t>(entry.generation) << 32) | index;
  batch->handle = handle;
  entry.batch = std::move(batch);
  ++live_;
  return handle;
}

std::shared_ptr<Batch> BatchTable::Get(BatchHandle handle) const {
  const auto index = static_cast<uint32_t>(handle);
  MutexLock lock(mutex_);
  if (index >= entries_.size() || entries_[index].generation != handle >> 32) return nullptr;
  return entries_[index].batch;
}

void BatchTable::Remove(BatchHandle handle) {
  const auto index = static_cast<uint32_t>(handle);
  std::shared_ptr<Batch> gone;  // destroyed after the lock
  MutexLock lock(mutex_);
  if (index >= entries_.size() || entries_[index].generation != handle >> 32) return;
  gone = std::move(entries_[index].batch);
  entries_[index].batch = nullptr;
  ++entries_[index].generation;
  if (entries_[index].generation == 0) entries_[index].generation = 1;
  free_.push_back(index);
  --live_;
}

size_t BatchTable::size() const {
  MutexLock lock(mutex_);
  return live_;
}

std::vector<std::shared_ptr<Batch>> BatchTable::All() const {
  std::vector<std::shared_ptr<Batch>> all;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.batch) all.push_back(entry.batch);
  }
  return all;
}

}  // namespace moonpool::engine
