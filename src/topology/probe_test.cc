#include "topology/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "topology/hwloc.h"
#include "topology/sysfs.h"

namespace moonpool::topology {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kPci[] = "sys/devices/pci0000:00/0000:00:01.0/";

// A made-up machine in a folder.
class ProbeTest : public testing::Test {
 protected:
  ProbeTest() {
    std::string name = (fs::temp_directory_path() / "topology-XXXXXX").string();
    root_ = mkdtemp(name.data());
    fs::create_directories(root_ / "sys/devices");
  }
  ~ProbeTest() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  void File(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void Link(const std::string& path, const std::string& target) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_directory_symlink(root_ / target, root_ / path);
  }
  void Node(int id, const std::string& cpus, const std::string& distance) {
    const std::string node = "sys/devices/system/node/node" + std::to_string(id) + "/";
    File(node + "cpulist", cpus + "\n");
    File(node + "distance", distance + "\n");
    File(node + "meminfo", "Node 0 MemTotal:       2048 kB\nNode 0 MemFree: 17 kB\n");
  }
  // A network interface on PCI device `address`.
  void Interface(const std::string& name, const std::string& address) {
    const std::string device = kPci + address;
    File(device + "/net/" + name + "/operstate", "up\n");
    Link(device + "/net/" + name + "/device", device);
    Link("sys/class/net/" + name, device + "/net/" + name);
  }
  Topology Probed() {
    auto probed = Probe(root_.string());
    EXPECT_TRUE(probed.ok()) << probed.status().ToString();
    return std::move(probed).value();
  }
  Nic NicNamed(const std::string& name) {
    const Topology t = Probed();
    const auto it = std::find_if(t.nics.begin(), t.nics.end(),
                                 [&](const Nic& nic) { return nic.name == name; });
    EXPECT_NE(it, t.nics.end()) << name;
    return it == t.nics.end() ? Nic{} : *it;
  }

  fs::path root_;
};

TEST_F(ProbeTest, NodesHaveProcessorsMemoryAndDistances) {
  Node(0, "0-1,4", "10 21");
  Node(2, "2,3", "21 10");
  const Topology t = Probed();
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_THAT(t.nodes[0].cpus, ElementsAre(0, 1, 4));
  EXPECT_EQ(t.nodes[1].id, 2);
  EXPECT_EQ(t.nodes[1].memory_bytes, 2048u * 1024);
  EXPECT_EQ(t.nodes[0].distances.at(2), 21);
}

TEST_F(ProbeTest, AMachineWithoutNumaIsOneNode) {
  File("sys/devices/system/cpu/online", "0-3\n");
  const Topology t = Probed();
  ASSERT_EQ(t.nodes.size(), 1u);
  EXPECT_THAT(t.nodes[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(t.notes, Contains(HasSubstr("no NUMA nodes")));
}

TEST_F(ProbeTest, AnInterfaceIsDescribedByItsDevice) {
  Node(0, "0", "10 20");
  Node(1, "1", "20 10");
  Interface("eth7", "0000:01:00.0");
  File(std::string(kPci) + "0000:01:00.0/numa_node", "1\n");
  File(std::string(kPci) + "0000:01:00.0/net/eth7/speed", "25000\n");
  Link(std::string(kPci) + "0000:01:00.0/driver", "sys/bus/pci/drivers/mlx5_core");
  const Nic nic = NicNamed("eth7");
  EXPECT_EQ(nic.kind, NicKind::kNetwork);
  EXPECT_EQ(nic.numa_node, 1);
  EXPECT_EQ(nic.speed_mbps, 25000u);
  EXPECT_EQ(nic.driver, "mlx5_core");
  EXPECT_EQ(nic.pci_path, "pci0000:00/0000:00:01.0/0000:01:00.0");
  EXPECT_TRUE(nic.up);
  EXPECT_FALSE(nic.is_virtual);
}

TEST_F(ProbeTest, AVirtioInterfaceTakesTheNodeOfThePciDeviceAboveIt) {
  Node(0, "0", "10 20");
  Node(1, "1", "20 10");
  Interface("eth0", "0000:02:00.0/virtio2");
  File(std::string(kPci) + "0000:02:00.0/numa_node", "1\n");
  EXPECT_EQ(NicNamed("eth0").numa_node, 1);
  EXPECT_EQ(NicNamed("eth0").pci_path, "pci0000:00/0000:00:01.0/0000:02:00.0");
}

TEST_F(ProbeTest, AnInterfaceWithoutDeviceIsListedAndNotPreferred) {
  File("sys/devices/virtual/net/lo/operstate", "unknown\n");
  File("sys/devices/virtual/net/lo/carrier", "1\n");
  Link("sys/class/net/lo", "sys/devices/virtual/net/lo");
  File("sys/class/net/bonding_masters", "\n");
  const Topology t = Probed();
  ASSERT_EQ(t.nics.size(), 1u);
  EXPECT_TRUE(t.nics[0].is_virtual);
  EXPECT_TRUE(t.nics[0].up);
  EXPECT_THAT(AffinityMatrix(t, NicKind::kNetwork).at("cpu:0").preferred, IsEmpty());
}

TEST_F(ProbeTest, ADownInterfaceHasNoSpeedAndIsNotUp) {
  Interface("eth1", "0000:03:00.0");
  File(std::string(kPci) + "0000:03:00.0/net/eth1/operstate", "down\n");
  File(std::string(kPci) + "0000:03:00.0/net/eth1/speed", "-1\n");
  EXPECT_EQ(NicNamed("eth1").speed_mbps, 0u);
  EXPECT_FALSE(NicNamed("eth1").up);
}

TEST_F(ProbeTest, AnRdmaDeviceIsUpWithAnActivePort) {
  const std::string device = std::string(kPci) + "0000:04:00.0";
  Interface("ens1", "0000:04:00.0");
  File(device + "/infiniband/mlx5_3/ports/1/state", "4: ACTIVE\n");
  File(device + "/infiniband/mlx5_3/ports/1/rate", "200 Gb/sec (4X HDR)\n");
  Link(device + "/infiniband/mlx5_3/device", device);
  Link("sys/class/infiniband/mlx5_3", device + "/infiniband/mlx5_3");
  const Nic nic = NicNamed("mlx5_3");
  EXPECT_EQ(nic.kind, NicKind::kRdma);
  EXPECT_TRUE(nic.up);
  EXPECT_EQ(nic.speed_mbps, 200000u);
  EXPECT_THAT(nic.via, ElementsAre("ens1"));
  EXPECT_THAT(NicNamed("ens1").via, ElementsAre("mlx5_3"));
}

TEST_F(ProbeTest, SoftRoceIsAsRealAsTheInterfaceBelow) {
  Interface("eth0", "0000:05:00.0");
  File("sys/devices/virtual/infiniband/rxe0/parent", "eth0\n");
  File("sys/devices/virtual/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  Link("sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0");
  const Nic nic = NicNamed("rxe0");
  EXPECT_FALSE(nic.is_virtual);
  EXPECT_EQ(nic.pci_path, NicNamed("eth0").pci_path);
  EXPECT_THAT(AffinityMatrix(Probed(), NicKind::kRdma).at("cpu:0").preferred, ElementsAre("rxe0"));
}

TEST_F(ProbeTest, AcceleratorsAreNumberedByPciAddressAndOtherDevicesIgnored) {
  const auto card = [&](const std::string& address, const char* vendor, const char* kind) {
    const std::string device = kPci + address;
    File(device + "/vendor", vendor);
    File(device + "/class", kind);
    File(device + "/numa_node", "0\n");
    Link("sys/bus/pci/devices/" + address, device);
  };
  card("0000:0b:00.0", "0x10de\n", "0x030200\n");
  card("0000:0a:00.0", "0x10de\n", "0x030000\n");
  card("0000:0c:00.0", "0x1002\n", "0x120000\n");
  card("0000:0d:00.0", "0x10de\n", "0x040300\n");  // its sound
  card("0000:0e:00.0", "0x8086\n", "0x030000\n");
  const Topology t = Probed();
  ASSERT_EQ(t.accelerators.size(), 3u);
  EXPECT_EQ(t.accelerators[0].location, "cuda:0");
  EXPECT_THAT(t.accelerators[0].pci_path, HasSubstr("0000:0a:00.0"));
  EXPECT_EQ(t.accelerators[1].location, "cuda:1");
  EXPECT_EQ(t.accelerators[2].location, "hip:0");
}

TEST_F(ProbeTest, GarbageInFilesLeavesDefaults) {
  Node(0, "zero-many", "near far");
  File("sys/devices/system/node/node0/meminfo", "MemTotal: lots");
  File("sys/devices/system/node/nodes/cpulist", "0");
  Interface("eth0", "0000:06:00.0");
  File(std::string(kPci) + "0000:06:00.0/numa_node", "99999999999999999999\n");
  File(std::string(kPci) + "0000:06:00.0/net/eth0/speed", "fast\n");
  const Topology t = Probed();
  ASSERT_EQ(t.nodes.size(), 1u);
  EXPECT_THAT(t.nodes[0].cpus, IsEmpty());
  EXPECT_THAT(t.nodes[0].distances, IsEmpty());
  EXPECT_EQ(t.nodes[0].memory_bytes, 0u);
  EXPECT_EQ(NicNamed("eth0").speed_mbps, 0u);
}

TEST_F(ProbeTest, WithoutSysfsTheRootIsNamed) {
  const auto probed = Probe((root_ / "nothing").string());
  ASSERT_EQ(probed.code(), Code::kUnavailable);
  EXPECT_THAT(probed.status().message(), HasSubstr("nothing"));
}

TEST(Sysfs, CpuListsAreParsedUpToWhatIsNotOne) {
  EXPECT_THAT(sysfs::ParseCpuList("0-2,5"), ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(sysfs::ParseCpuList("3,x"), ElementsAre(3));
  EXPECT_THAT(sysfs::ParseCpuList(""), IsEmpty());
  EXPECT_LE(sysfs::ParseCpuList("0-2000000000").size(), 65536u);
}

TEST(Probe, ThisMachineHasANodeWithProcessors) {
  if (!fs::is_directory("/sys/devices")) GTEST_SKIP() << "no sysfs is mounted here";
  const auto probed = Probe();
  ASSERT_TRUE(probed.ok()) << probed.status().ToString();
  ASSERT_FALSE(probed->nodes.empty());
  const auto read = FromMooncakeJson(ToMooncakeJson(AffinityMatrix(*probed, NicKind::kNetwork)));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), probed->nodes.size() + probed->accelerators.size());
}

TEST(Hwloc, AnswersOrSaysWhyNot) {
  const HwlocView view = AskHwloc();
  EXPECT_NE(view.version.empty(), view.missing.empty());
}

}  // namespace
}  // namespace moonpool::topology
