#include "registry/http/wrapped.h"

#include <gtest/gtest.h>

namespace moonpool::registry::http {
namespace {

TEST(WrappedTest, GoldenBytes) {
  const Wrapped entry{0xabc, 7, 1'700'000'000'123, "10.0.0.7:80\n"};
  const std::string bytes = "moonpool-entry 1 0000000000000abc 7 1700000000123\n10.0.0.7:80\n";
  EXPECT_EQ(EncodeWrapped(entry), bytes);
  EXPECT_EQ(DecodeWrapped(bytes).value(), entry);
}

TEST(WrappedTest, OtherBytesAreCorrupt) {
  const std::string good = EncodeWrapped({1, 2, 3, ""});
  EXPECT_TRUE(DecodeWrapped(good).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(DecodeWrapped(good.substr(0, size)).code(), Code::kCorrupt) << size;
  }
  for (const char* bytes :
       {"{\"name\": \"json\"}", "moonpool-entry 2 1 2 3\n", "moonpool-entry 1 xyz 2 3\n",
        "moonpool-entry 1 1 -2 3\n", "moonpool-entry 1 1 2 3 4\n",
        "moonpool-entry 1 1ffffffffffffffff 2 3\n"}) {
    EXPECT_EQ(DecodeWrapped(bytes).code(), Code::kCorrupt) << bytes;
  }
}

}  // namespace
}  // namespace moonpool::registry::http
