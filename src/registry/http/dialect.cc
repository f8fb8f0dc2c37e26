#include "registry/http/dialect.h"

#include <charconv>
#include <cstdio>
#include <utility>

#include "base/str.h"
#include "registry/http/wrapped.h"
#include "registry/protocol.h"

namespace moonpool::registry::http {
namespace {

namespace web = ::moonpool::http;

std::string Hex(OwnerToken owner) {
  char text[17] = {};
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(owner));
  return text;
}

uint64_t VersionOf(const web::Response& response) {
  const auto it = response.headers.find(protocol::kEntryVersionField);
  uint64_t version = 0;
  if (it != response.headers.end()) {
    std::from_chars(it->second.data(), it->second.data() + it->second.size(), version);
  }
  return version;
}

class LeaseDialect final : public Dialect {
 public:
  LeaseDialect(web::Client& client, std::string base) : client_(client), base_(std::move(base)) {}

  Result<uint64_t> Put(const Held& entry, bool if_absent, Time deadline) override {
    web::ClientRequest request = Owned(entry, protocol::kEntry);
    request.body = entry.value;
    if (if_absent) request.query.emplace("if_absent", "1");
    MOONPOOL_ASSIGN_OR_RETURN(const web::Response response, Send(request, deadline));
    return VersionOf(response);
  }

  Result<Entry> Get(std::string_view name, Time deadline) override {
    MOONPOOL_ASSIGN_OR_RETURN(
        web::Response response,
        Send({.url = base_ + protocol::kEntry, .query = {{"name", std::string(name)}}}, deadline));
    return Entry{std::move(response.body), VersionOf(response)};
  }

  Status Renew(const Held& entry, Time deadline) override {
    return Send(Owned(entry, protocol::kLease), deadline).status();
  }

  Status Remove(std::string_view name, OwnerToken owner, Time deadline) override {
    web::ClientRequest request{.url = base_ + protocol::kEntry, .method = "DELETE"};
    request.query = {{"name", std::string(name)}, {"owner", Hex(owner)}};
    return Send(request, deadline).status();
  }

  Result<std::vector<std::string>> List(std::string_view prefix, Time deadline) override {
    MOONPOOL_ASSIGN_OR_RETURN(
        const web::Response response,
        Send({.url = base_ + protocol::kNames, .query = {{"prefix", std::string(prefix)}}},
             deadline));
    std::vector<std::string> names;
    std::string_view rest = response.body;
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      if (end == std::string_view::npos) return Status(Code::kCorrupt, "half a list of names");
      names.emplace_back(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
    return names;
  }

 private:
  web::ClientRequest Owned(const Held& entry, const char* path) const {
    const auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(entry.lease);
    return {
        .url = base_ + path,
        .method = "PUT",
        .query = {
            {"name", entry.name}, {"owner", Hex(entry.owner)}, {"lease_ms", Str(lease.count())}}};
  }

  Result<web::Response> Send(const web::ClientRequest& request, Time deadline) {
    MOONPOOL_ASSIGN_OR_RETURN(web::Response response, client_.Send(request, deadline));
    MOONPOOL_RETURN_IF_ERROR(StatusOf(response));
    return response;
  }

  web::Client& client_;
  const std::string base_;
};

class PlainDialect final : public Dialect {
 public:
  PlainDialect(web::Client& client, std::string url, WallClock wall)
      : client_(client), url_(std::move(url)), wall_(std::move(wall)) {}

  Result<uint64_t> Put(const Held& entry, bool if_absent, Time deadline) override {
    const auto found = Read(entry.name, deadline);
    const bool absent = found.code() == Code::kNotFound;
    // What another program stored under our prefix is replaced.
    if (!found.ok() && !absent && found.code() != Code::kCorrupt) return found.status();
    uint64_t version = 1;
    if (found.ok()) {
      const bool live = found->expires_unix_ms > wall_();
      if (if_absent && live && found->owner != entry.owner) return Replaced(entry.name);
      version = found->version + 1;
    }
    MOONPOOL_RETURN_IF_ERROR(Write(entry, version, deadline));
    return version;
  }

  Result<Entry> Get(std::string_view name, Time deadline) override {
    MOONPOOL_ASSIGN_OR_RETURN(Wrapped found, Read(name, deadline));
    if (found.expires_unix_ms <= wall_()) {
      return Status(Code::kNotFound, Str("the lease of the entry '", name, "' has run out"));
    }
    return Entry{std::move(found.value), found.version};
  }

  Status Renew(const Held& entry, Time deadline) override {
    MOONPOOL_ASSIGN_OR_RETURN(const Wrapped found, Read(entry.name, deadline));
    // An older owner that read before this one wrote may have written after it: ours again.
    const bool ours = found.owner == entry.owner || found.version < entry.version;
    if (!ours) return Replaced(entry.name);
    return Write(entry, entry.version, deadline);
  }

  Status Remove(std::string_view name, OwnerToken owner, Time deadline) override {
    MOONPOOL_ASSIGN_OR_RETURN(const Wrapped found, Read(name, deadline));
    if (found.owner != owner) return Replaced(name);
    return Send("DELETE", name, "", deadline).status();
  }

  Result<std::vector<std::string>> List(std::string_view, Time) override {
    return Status(Code::kUnsupported, "this registry server has no list of names");
  }

 private:
  static Status Replaced(std::string_view name) {
    return Status(Code::kStale, Str("another owner has the entry '", name, "' in the registry"));
  }

  Result<web::Response> Send(const std::string& method, std::string_view name, std::string body,
                             Time deadline) {
    MOONPOOL_ASSIGN_OR_RETURN(web::Response response,
                              client_.Send({.url = url_,
                                            .method = method,
                                            .query = {{"key", Str("moonpool/", name)}},
                                            .body = std::move(body)},
                                           deadline));
    MOONPOOL_RETURN_IF_ERROR(StatusOf(response));
    return response;
  }

  Result<Wrapped> Read(std::string_view name, Time deadline) {
    MOONPOOL_ASSIGN_OR_RETURN(const web::Response response, Send("GET", name, "", deadline));
    return DecodeWrapped(response.body);
  }

  Status Write(const Held& entry, uint64_t version, Time deadline) {
    const auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(entry.lease);
    const Wrapped wrapped{entry.owner, version, wall_() + lease.count(), entry.value};
    return Send("PUT", entry.name, EncodeWrapped(wrapped), deadline).status();
  }

  web::Client& client_;
  const std::string url_;
  const WallClock wall_;
};

}  // namespace

Status StatusOf(const web::Response& response) {
  if (response.status == 200) return Status::Ok();
  std::string said = response.body.substr(0, 200);
  if (said.ends_with("\n")) said.pop_back();
  const std::string message = Str("registry server: ", response.status, " ", said);
  switch (response.status) {
    case 400:
    case 413:
    case 431:
      return Status(Code::kInvalidArgument, message);
    case 404:
      return Status(Code::kNotFound, message);
    case 409:
      return Status(Code::kStale, message);
    case 507:
      return Status(Code::kExhausted, message);
    default:
      return Status(Code::kUnavailable, message);
  }
}

std::unique_ptr<Dialect> MakeLeaseDialect(web::Client& client, const std::string& base) {
  return std::make_unique<LeaseDialect>(client, base);
}

std::unique_ptr<Dialect> MakePlainDialect(web::Client& client, const std::string& url,
                                          WallClock wall) {
  return std::make_unique<PlainDialect>(client, url, std::move(wall));
}

}  // namespace moonpool::registry::http
