#include "registry/p2p/p2p.h"

#include "registry/conformance.h"

namespace moonpool::registry {
namespace {

class P2pWorld final : public World {
 public:
  std::unique_ptr<Registry> Open() override {
    return p2p::MakeFactory().create({net::testing::RealClock(), log_}, "p2p").value();
  }
  Status PutAndDie(const Registration&) override { return Status::Ok(); }
  std::string Name(int number) override { return "10.0.0.7:" + std::to_string(1000 + number); }

 private:
  Logger log_{LogLevel::kOff};
};

INSTANTIATE_TEST_SUITE_P(P2p, RegistryConformance,
                         ::testing::Values(Subject{"p2p",
                                                   [] { return std::make_unique<P2pWorld>(); }}),
                         SubjectName);

TEST(P2pTest, ANameIsItsAddress) {
  P2pWorld world;
  const auto registry = world.Open();
  EXPECT_EQ(registry->Get("10.0.0.7:80", kNever).value().value, "10.0.0.7:80");
  EXPECT_EQ(registry->Get("[::1]:80", kNever).value().value, "[::1]:80");
  EXPECT_EQ(registry->Get("node7:80", kNever).value().value, "node7:80");
  EXPECT_EQ(registry->Get("node7", kNever).code(), Code::kInvalidArgument);
  EXPECT_EQ(registry->Get("node7:0", kNever).code(), Code::kInvalidArgument);
}

TEST(P2pTest, AfterCloseNothingIsAnswered) {
  P2pWorld world;
  const auto registry = world.Open();
  registry->Close();
  registry->Close();
  EXPECT_EQ(registry->Get("10.0.0.7:80", kNever).code(), Code::kCancelled);
}

TEST(P2pTest, AcceptsTheUrlsThatMeanNoRegistry) {
  const Factory factory = p2p::MakeFactory();
  for (const char* url : {"", "p2p", "p2p://", "P2PHANDSHAKE"}) EXPECT_TRUE(factory.accepts(url));
  for (const char* url : {"http://h", "etcd://h"}) EXPECT_FALSE(factory.accepts(url));
}

}  // namespace
}  // namespace moonpool::registry
