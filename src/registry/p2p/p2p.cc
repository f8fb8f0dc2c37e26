#include "registry/p2p/p2p.h"

#include <atomic>

#include "base/random.h"
#include "net/address.h"

namespace moonpool::registry::p2p {
namespace {

class P2pRegistry final : public Registry {
 public:
  std::string_view name() const override { return "p2p"; }
  const Capabilities& capabilities() const override { return capabilities_; }

  Result<OwnerToken> Put(const Registration& registration, Time) override {
    MOONPOOL_RETURN_IF_ERROR(Open());
    MOONPOOL_RETURN_IF_ERROR(CheckRegistration(registration));
    return SecureUint64();
  }

  Result<Entry> Get(std::string_view name, Time) override {
    MOONPOOL_RETURN_IF_ERROR(Open());
    MOONPOOL_RETURN_IF_ERROR(CheckName(name));
    MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort address, net::ParseHostPort(name));
    if (address.port == 0) {
      return Status(Code::kInvalidArgument, "a peer's address has port 0; 1 to 65535 allowed");
    }
    return Entry{.value = address.ToString(), .version = 0};
  }

  Status Remove(std::string_view name, OwnerToken, Time) override {
    MOONPOOL_RETURN_IF_ERROR(Open());
    return CheckName(name);
  }

  Result<std::vector<std::string>> List(std::string_view, Time) override {
    return Status(Code::kUnsupported, "without a registry there is no list of names");
  }

  Status Check(std::string_view name, OwnerToken) const override { return CheckName(name); }

  void Close() override { closed_.store(true, std::memory_order_relaxed); }

 private:
  Status Open() const {
    if (!closed_.load(std::memory_order_relaxed)) return Status::Ok();
    return Status(Code::kCancelled, "the registry is closed");
  }

  const Capabilities capabilities_{.stores = false, .lists = false};
  std::atomic<bool> closed_{false};  // publishes nothing but itself
};

}  // namespace

Factory MakeFactory() {
  return Factory{
      .name = "p2p",
      .accepts =
          [](std::string_view url) {
            return url.empty() || url == "p2p" || url == "p2p://" || url == "P2PHANDSHAKE";
          },
      .create = [](const Environment&, const std::string&) -> Result<std::unique_ptr<Registry>> {
        return std::unique_ptr<Registry>(std::make_unique<P2pRegistry>());
      }};
}

}  // namespace moonpool::registry::p2p
