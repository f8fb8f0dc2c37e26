#include "registry/table.h"

#include "base/str.h"

namespace moonpool::registry {
namespace {

Status NotFound(std::string_view name) {
  return Status(Code::kNotFound, Str("no entry '", name, "' in the registry"));
}

Status Replaced(std::string_view name) {
  return Status(Code::kStale, Str("another owner has the entry '", name, "' in the registry"));
}

}  // namespace

void Table::CatchUp(Time now) {
  if (last_tick_ == Time{}) last_tick_ = now;
  if (now - last_tick_ > kStallMin) Tick(now);
}

Table::Records::iterator Table::FindLive(std::string_view name, Time now) {
  CatchUp(now);
  const auto it = records_.find(name);
  if (it == records_.end() || now < it->second.expires) return it;
  Erase(it);
  return records_.end();
}

void Table::Erase(Records::iterator it) {
  bytes_ -= it->first.size() + it->second.value.size();
  records_.erase(it);
}

Result<uint64_t> Table::Put(const PutRequest& request, Time now) {
  MOONPOOL_RETURN_IF_ERROR(CheckName(request.name));
  if (request.value.size() > kValueBytesMax) {
    return Status(Code::kInvalidArgument,
                  Str("value of ", request.value.size(), " bytes, ", kValueBytesMax, " allowed"));
  }
  auto it = FindLive(request.name, now);
  const bool exists = it != records_.end();
  if (exists && request.if_absent && it->second.owner != request.owner) {
    return Status(Code::kAlreadyExists, Replaced(request.name).message());
  }
  if (!exists && records_.size() >= bounds_.entries_max) {
    return Status(Code::kExhausted,
                  Str("the registry holds ", bounds_.entries_max, " entries, its bound"));
  }
  const size_t before = exists ? it->first.size() + it->second.value.size() : 0;
  const size_t after = request.name.size() + request.value.size();
  if (bytes_ - before + after > bounds_.bytes_max) {
    return Status(Code::kExhausted,
                  Str("the registry would hold more than ", bounds_.bytes_max, " bytes"));
  }
  bytes_ = bytes_ - before + after;
  if (!exists) it = records_.emplace(request.name, Record{}).first;
  it->second =
      Record{std::string(request.value), ++last_version_, request.owner, After(now, request.lease)};
  return it->second.version;
}

Result<Entry> Table::Get(std::string_view name, Time now) {
  const auto it = FindLive(name, now);
  if (it == records_.end()) return NotFound(name);
  return Entry{it->second.value, it->second.version};
}

Status Table::Renew(std::string_view name, OwnerToken owner, Duration lease, Time now) {
  const auto it = FindLive(name, now);
  if (it == records_.end()) return NotFound(name);
  if (it->second.owner != owner) return Replaced(name);
  it->second.expires = After(now, lease);
  return Status::Ok();
}

Status Table::Remove(std::string_view name, OwnerToken owner, Time now) {
  const auto it = FindLive(name, now);
  if (it == records_.end()) return NotFound(name);
  if (it->second.owner != owner) return Replaced(name);
  Erase(it);
  return Status::Ok();
}

Status Table::RemoveAny(std::string_view name, Time now) {
  const auto it = FindLive(name, now);
  if (it == records_.end()) return NotFound(name);
  Erase(it);
  return Status::Ok();
}

std::vector<std::string> Table::List(std::string_view prefix, size_t count_max, Time now) {
  CatchUp(now);
  std::vector<std::string> out;
  for (auto it = records_.lower_bound(prefix);
       it != records_.end() && it->first.starts_with(prefix) && out.size() < count_max; ++it) {
    if (now < it->second.expires) out.push_back(it->first);
  }
  return out;
}

void Table::Tick(Time now) {
  const Duration away = last_tick_ == Time{} ? Duration(0) : now - last_tick_;
  last_tick_ = now;
  for (auto it = records_.begin(); it != records_.end();) {
    const auto here = it++;
    Time& expires = here->second.expires;
    if (away > kStallMin && expires != kNever) expires = After(expires, away);
    if (now >= expires) Erase(here);
  }
}

}  // namespace moonpool::registry
