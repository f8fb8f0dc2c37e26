#include "topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moonpool::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kSwitchA[] = "pci0000:00/0000:00:01.0/0000:01:00.0/";
constexpr char kSwitchB[] = "pci0000:00/0000:00:02.0/0000:02:00.0/";

Nic RdmaNic(std::string name, int node, std::string pci_path) {
  Nic nic;
  nic.name = std::move(name);
  nic.kind = NicKind::kRdma;
  nic.numa_node = node;
  nic.pci_path = std::move(pci_path);
  nic.up = true;
  return nic;
}

// Two nodes; on node 0 two PCIe switches, each with a NIC and a GPU; on node 1 a NIC.
Topology TwoSockets() {
  Topology t;
  t.nodes = {{.id = 0, .cpus = {0, 1}, .memory_bytes = 1, .distances = {{0, 10}, {1, 21}}},
             {.id = 1, .cpus = {2, 3}, .memory_bytes = 1, .distances = {{0, 21}, {1, 10}}}};
  t.nics = {RdmaNic("mlx5_0", 0, std::string(kSwitchA) + "0000:03:00.0"),
            RdmaNic("mlx5_1", 0, std::string(kSwitchB) + "0000:04:00.0"),
            RdmaNic("mlx5_2", 1, "pci0000:80/0000:80:01.0")};
  t.accelerators = {{"cuda:0", std::string(kSwitchA) + "0000:05:00.0", 0},
                    {"cuda:1", std::string(kSwitchB) + "0000:06:00.0", 0}};
  return t;
}

TEST(PciDistance, CountsTheLevelsUpToTheCommonBridge) {
  EXPECT_EQ(PciDistance("pci0000:00/a", "pci0000:00/a"), 0);
  EXPECT_EQ(PciDistance("pci0000:00/a/b", "pci0000:00/a/c"), 1);
  EXPECT_EQ(PciDistance("pci0000:00/a/b", "pci0000:00/d/e/f"), 3);
  EXPECT_EQ(PciDistance("pci0000:00/a", "pci0000:80/a"), kFar);
  EXPECT_EQ(PciDistance("", "pci0000:80/a"), kFar);
  EXPECT_EQ(PciDistance("", ""), kFar);
}

TEST(AffinityMatrix, MemoryPrefersTheNicsOfItsNode) {
  const Matrix matrix = AffinityMatrix(TwoSockets(), NicKind::kRdma);
  EXPECT_THAT(matrix.at("cpu:0").preferred, ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_THAT(matrix.at("cpu:0").others, ElementsAre("mlx5_2"));
  EXPECT_THAT(matrix.at("cpu:1").preferred, ElementsAre("mlx5_2"));
}

TEST(AffinityMatrix, AGpuPrefersTheNicBehindItsSwitch) {
  const Matrix matrix = AffinityMatrix(TwoSockets(), NicKind::kRdma);
  EXPECT_THAT(matrix.at("cuda:0").preferred, ElementsAre("mlx5_0"));
  EXPECT_THAT(matrix.at("cuda:1").preferred, ElementsAre("mlx5_1"));
  EXPECT_THAT(matrix.at("cuda:1").others, ElementsAre("mlx5_0", "mlx5_2"));
}

TEST(AffinityMatrix, ANodeWithoutNicsPrefersTheNearestOnes) {
  Topology t = TwoSockets();
  t.nics.pop_back();
  EXPECT_THAT(AffinityMatrix(t, NicKind::kRdma).at("cpu:1").preferred,
              ElementsAre("mlx5_0", "mlx5_1"));
}

TEST(AffinityMatrix, VirtualDownAndOtherNicsAreLeftOut) {
  Topology t = TwoSockets();
  t.nics[0].is_virtual = true;
  t.nics[1].up = false;
  t.nics[2].kind = NicKind::kNetwork;
  const Matrix matrix = AffinityMatrix(t, NicKind::kRdma);
  EXPECT_EQ(matrix.at("cpu:0"), Affinity{});
  EXPECT_THAT(AffinityMatrix(t, NicKind::kNetwork).at("cpu:0").preferred, ElementsAre("mlx5_2"));
}

TEST(AffinityMatrix, ANicOfUnknownNodeIsBehindThoseThatAreKnown) {
  Topology t = TwoSockets();
  t.nics[0].numa_node = -1;
  EXPECT_THAT(AffinityMatrix(t, NicKind::kRdma).at("cpu:0").preferred, ElementsAre("mlx5_1"));
}

TEST(RankNics, PreferredComeBeforeOthersAndAnywhereRanksByVotes) {
  const Matrix matrix = AffinityMatrix(TwoSockets(), NicKind::kRdma);
  EXPECT_THAT(RankNics(matrix, "cuda:1"), ElementsAre("mlx5_1", "mlx5_0", "mlx5_2"));
  const Matrix votes = {{"cpu:0", {{"b"}, {"a"}}}, {"cpu:1", {{"b", "c"}, {}}}};
  EXPECT_THAT(RankNics(votes, "*"), ElementsAre("b", "c", "a"));
  EXPECT_THAT(RankNics(votes, "cpu:7"), ElementsAre("b", "c", "a"));
  EXPECT_THAT(RankNics({}, "*"), IsEmpty());
}

TEST(MooncakeJson, HasTheShapeThatMooncakePublishes) {
  EXPECT_EQ(ToMooncakeJson({{"cpu:0", {{"mlx5_0"}, {"mlx5_1", "mlx5_2"}}}, {"cuda:0", {}}}),
            R"({"cpu:0":[["mlx5_0"],["mlx5_1","mlx5_2"]],"cuda:0":[[],[]]})");
  EXPECT_EQ(ToMooncakeJson({}), "{}");
}

TEST(MooncakeJson, IsReadBackAsWritten) {
  const Matrix matrix = {{"cpu:0", {{"a\"b\\c\n\x01", "\xc3\xa9"}, {}}}, {"*", {{}, {"x"}}}};
  const auto read = FromMooncakeJson(ToMooncakeJson(matrix));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, matrix);
}

TEST(MooncakeJson, WhatIsWrongIsNamedWithItsLocation) {
  const auto message = [](std::string_view text) {
    const auto read = FromMooncakeJson(text);
    EXPECT_EQ(read.code(), Code::kInvalidArgument) << text;
    return read.status().message();
  };
  EXPECT_THAT(message(""), HasSubstr("not JSON"));
  EXPECT_THAT(message("{\"cpu:0\":[[],[]]"), HasSubstr("not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("not an object"));
  EXPECT_THAT(message("{\"cpu:0\":{}}"), HasSubstr("\"cpu:0\""));
  EXPECT_THAT(message("{\"cpu:0\":[[]]}"), HasSubstr("1 elements"));
  EXPECT_THAT(message("{\"cpu:0\":[[],\"x\"]}"), HasSubstr("not an array"));
  EXPECT_THAT(message("{\"cpu:0\":[[1],[]]}"), HasSubstr("not a string"));
  EXPECT_THAT(message("{\"cpu:0\":[[\"\"],[]]}"), HasSubstr("empty"));
  EXPECT_THAT(message(std::string(2 << 20, ' ')), HasSubstr("at most"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("not JSON"));
}

}  // namespace
}  // namespace moonpool::topology
