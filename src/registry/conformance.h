#pragma once

// The conformance suite of registries: every back end instantiates it with a world of its own.
//
//   INSTANTIATE_TEST_SUITE_P(Http, RegistryConformance,
//                            ::testing::Values(Subject{"http", [] { return MakeHttpWorld(); }}));

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/test_support.h"
#include "registry/registry.h"

namespace moonpool::registry {

// A server, if the back end needs one, and a way to make registries that share it.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Registry> Open() = 0;
  // Stores an entry as an owner does that dies right afterwards.
  virtual Status PutAndDie(const Registration& registration) = 0;
  // A name that Get would understand.
  virtual std::string Name(int number) { return "segment-" + std::to_string(number); }
};

struct Subject {
  std::string name;
  std::function<std::unique_ptr<World>()> make;
};

class RegistryConformance : public ::testing::TestWithParam<Subject> {
 protected:
  static constexpr Duration kShort = std::chrono::milliseconds(300);
  static constexpr Duration kLong = std::chrono::hours(1);

  static Time Soon() { return net::testing::Soon(); }
  Result<OwnerToken> Put(Registry& registry, const std::string& value, Duration lease = kLong) {
    return registry.Put({world_->Name(1), value, lease}, Soon());
  }
  Result<Entry> Get(Registry& registry) { return registry.Get(world_->Name(1), Soon()); }
  bool Stores() { return registry_->capabilities().stores; }

  const std::unique_ptr<World> world_ = GetParam().make();
  const std::unique_ptr<Registry> registry_ = world_->Open();
};

inline std::string SubjectName(const ::testing::TestParamInfo<Subject>& info) {
  return info.param.name;
}

#define MOONPOOL_REGISTRY_NEEDS_STORE()                                            \
  do {                                                                             \
    (void)registry_->Get(world_->Name(99), Soon()).ok(); /* the server is known */ \
    if (!Stores()) GTEST_SKIP() << registry_->name() << " stores nothing";         \
  } while (false)

TEST_P(RegistryConformance, WhatWasPutIsFound) {
  const auto token = Put(*registry_, "value");
  ASSERT_TRUE(token.ok()) << token.status().ToString();
  const auto entry = Get(*registry_);
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  if (Stores()) {
    EXPECT_EQ(entry->value, "value");
  }
  EXPECT_TRUE(registry_->Remove(world_->Name(1), *token, Soon()).ok());
}

TEST_P(RegistryConformance, ValuesAreBytes) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  std::string value = "line\r\n\r\n";
  for (int i = 0; i < 256; ++i) value += static_cast<char>(i);
  for (const std::string& each : {value, std::string(), std::string(kValueBytesMax, 'x')}) {
    ASSERT_TRUE(Put(*registry_, each).ok());
    EXPECT_TRUE(Get(*registry_).value().value == each);
  }
}

TEST_P(RegistryConformance, NamesMayHaveAnyPrintableCharacter) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  for (const std::string& name :
       {std::string("a/b?c=d&e#f%20+ g"), std::string("ä€"), std::string(kNameBytesMax, 'x')}) {
    ASSERT_TRUE(registry_->Put({name, name, kLong}, Soon()).ok());
    EXPECT_EQ(registry_->Get(name, Soon()).value().value, name);
  }
}

TEST_P(RegistryConformance, AnUnknownNameIsNotFound) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  EXPECT_EQ(Get(*registry_).code(), Code::kNotFound);
}

TEST_P(RegistryConformance, BadArgumentsAreNamed) {
  EXPECT_EQ(registry_->Put({"", "v"}, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(registry_->Put({"a\nb", "v"}, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(registry_->Put({std::string(kNameBytesMax + 1, 'n'), "v"}, Soon()).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(registry_->Put({"n", std::string(kValueBytesMax + 1, 'v')}, Soon()).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(registry_->Put({"n", "v", Duration(0)}, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(registry_->Put({"n", "v", kLeaseMax * 2}, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(registry_->Get("", Soon()).code(), Code::kInvalidArgument);
}

TEST_P(RegistryConformance, TheNewestOwnerHasTheName) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  const auto second = world_->Open();
  const auto old_token = Put(*registry_, "old", kShort);
  const auto new_token = Put(*second, "new", kLong);
  ASSERT_TRUE(old_token.ok() && new_token.ok());
  EXPECT_EQ(Get(*registry_).value().value, "new");
  EXPECT_TRUE(net::testing::Eventually(
      [&] { return registry_->Check(world_->Name(1), *old_token).code() == Code::kStale; }));
  EXPECT_EQ(registry_->Remove(world_->Name(1), *old_token, Soon()).code(), Code::kStale);
  EXPECT_EQ(Get(*registry_).value().value, "new");
  EXPECT_TRUE(second->Check(world_->Name(1), *new_token).ok());
}

TEST_P(RegistryConformance, VersionsGrow) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  ASSERT_TRUE(Put(*registry_, "1").ok());
  const uint64_t first = Get(*registry_).value().version;
  ASSERT_TRUE(Put(*registry_, "2").ok());
  EXPECT_GT(Get(*registry_).value().version, first);
}

TEST_P(RegistryConformance, ASecondPutMakesTheFirstTokenStale) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  const auto first = Put(*registry_, "1");
  const auto second = Put(*registry_, "2");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(registry_->Check(world_->Name(1), *first).code(), Code::kStale);
  EXPECT_TRUE(registry_->Check(world_->Name(1), *second).ok());
  EXPECT_EQ(registry_->Check(world_->Name(2), *second).code(), Code::kNotFound);
}

TEST_P(RegistryConformance, RemovedEntriesAreGone) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  const auto token = Put(*registry_, "value");
  ASSERT_TRUE(token.ok());
  EXPECT_TRUE(registry_->Remove(world_->Name(1), *token, Soon()).ok());
  EXPECT_EQ(Get(*registry_).code(), Code::kNotFound);
  EXPECT_TRUE(registry_->Remove(world_->Name(1), *token, Soon()).ok());
  EXPECT_EQ(registry_->Check(world_->Name(1), *token).code(), Code::kNotFound);
}

TEST_P(RegistryConformance, ADeadOwnersEntryVanishes) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  ASSERT_TRUE(world_->PutAndDie({world_->Name(1), "value", kShort}).ok());
  EXPECT_TRUE(net::testing::Eventually([&] { return Get(*registry_).code() == Code::kNotFound; }));
}

TEST_P(RegistryConformance, ALivingOwnersEntryOutlivesItsLease) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  const Time put = BootClock::now();
  const auto token = Put(*registry_, "value", kShort);
  ASSERT_TRUE(token.ok());
  // An owner that a busy machine has kept from renewing in time gets its entry back.
  EXPECT_TRUE(net::testing::Eventually(
      [&] { return BootClock::now() > put + 3 * kShort && Get(*registry_).ok(); }));
  EXPECT_TRUE(registry_->Check(world_->Name(1), *token).ok());
}

TEST_P(RegistryConformance, ListsByPrefixInOrder) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  if (!registry_->capabilities().lists) {
    EXPECT_EQ(registry_->List("", Soon()).code(), Code::kUnsupported);
    GTEST_SKIP() << registry_->name() << " has no lists here";
  }
  for (const char* name : {"b/2", "a/1", "b/1", "c"}) {
    ASSERT_TRUE(registry_->Put({name, "", kLong}, Soon()).ok());
  }
  EXPECT_THAT(registry_->List("b/", Soon()).value(), ::testing::ElementsAre("b/1", "b/2"));
  EXPECT_THAT(registry_->List("", Soon()).value(), ::testing::SizeIs(4));
  EXPECT_THAT(registry_->List("x", Soon()).value(), ::testing::IsEmpty());
}

TEST_P(RegistryConformance, CloseRemovesItsEntriesAndEndsCalls) {
  MOONPOOL_REGISTRY_NEEDS_STORE();
  const auto observer = world_->Open();
  ASSERT_TRUE(Put(*registry_, "value", kLeaseMin).ok());
  registry_->Close();
  registry_->Close();
  EXPECT_TRUE(net::testing::Eventually([&] { return Get(*observer).code() == Code::kNotFound; }));
  EXPECT_EQ(Get(*registry_).code(), Code::kCancelled);
  EXPECT_EQ(Put(*registry_, "again").code(), Code::kCancelled);
}

}  // namespace moonpool::registry
