#include "registry/registry.h"

#include <algorithm>

#include "base/str.h"

namespace moonpool::registry {
namespace {

int64_t Millis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

Status CheckName(std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax) {
    return Status(Code::kInvalidArgument, Str("registry name of ", name.size(), " bytes, 1 to ",
                                              kNameBytesMax, " allowed"));
  }
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), control)) {
    return Status(Code::kInvalidArgument, "registry name with a control character");
  }
  return Status::Ok();
}

Status CheckRegistration(const Registration& registration) {
  MOONPOOL_RETURN_IF_ERROR(CheckName(registration.name));
  if (registration.value.size() > kValueBytesMax) {
    return Status(Code::kInvalidArgument,
                  Str("registry value of '", registration.name, "' of ", registration.value.size(),
                      " bytes, ", kValueBytesMax, " allowed"));
  }
  if (registration.lease < kLeaseMin || registration.lease > kLeaseMax) {
    return Status(Code::kInvalidArgument,
                  Str("registry lease of '", registration.name, "' of ", Millis(registration.lease),
                      " ms, ", Millis(kLeaseMin), " to ", Millis(kLeaseMax), " allowed"));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Registry>> Open(std::span<const Factory> factories, const Environment& env,
                                       const std::string& url) {
  std::string known;
  for (const Factory& factory : factories) {
    if (factory.accepts(url)) return factory.create(env, url);
    known += (known.empty() ? "" : ", ") + factory.name;
  }
  return Status(Code::kInvalidArgument, Str("no registry back end accepts '", url.substr(0, 200),
                                            "'; this build has: ", known));
}

}  // namespace moonpool::registry
