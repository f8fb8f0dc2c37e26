#include "transport/conformance.h"

#include <utility>
#include <vector>

#include "base/str.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

// Whether the transport can be made at all on this machine; else why not.
Status Probe(const Params& params) {
  if (params.ground) return Status::Ok();
  SystemClock clock;
  Logger log(LogLevel::kOff);
  memory::RegionTable regions(clock);
  memory::ArenaSet arenas;
  TransportOptions options = params.options;
  options.bind_host = params.host;
  return params.factory.create({clock, log, regions, arenas, RandomId()}, options).status();
}

class ConformanceTest : public ::testing::Test {
 public:
  ConformanceTest(std::string instance, std::function<Params()> make, Case test)
      : instance_(std::move(instance)), make_(std::move(make)), case_(test) {}

  void TestBody() override {
    const Params params = make_();
    if (const Status status = Probe(params); status.code() == Code::kUnsupported) {
      GTEST_SKIP() << "not on this machine: " << status.message();
    }
    World world(params, instance_);
    case_.body(world);
  }

 private:
  const std::string instance_;
  const std::function<Params()> make_;
  const Case case_;
};

}  // namespace

bool Register(const char* name, std::function<Params()> make, Part part) {
  const std::string instance = name;
  const std::string suite = instance + "Conformance";
  std::vector<std::span<const Case>> parts = {DataCases(), RegionCases()};
  if (part == Part::kAll) {
    for (auto* cases : {&EndingCases, &DeadlineCases, &PeerCases, &ProcessCases}) {
      parts.push_back(cases());
    }
    RegisterChildren(instance, make);
  }
  for (const std::span<const Case> cases : parts) {
    for (const Case& test : cases) {
      // GoogleTest owns what the factory returns.
      ::testing::RegisterTest(
          suite.c_str(), test.name, nullptr, nullptr, __FILE__, __LINE__,
          [instance, make, test]() -> ConformanceTest* {
            return std::make_unique<ConformanceTest>(instance, make, test).release();
          });
    }
  }
  return true;
}

}  // namespace moonpool::transport::conformance
