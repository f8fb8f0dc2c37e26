// What an engine costs: sockets, ports, memory, idle time; and how it ends on a signal.

#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/port/sanitizer.h"
#include "base/str.h"
#include "base/thread.h"
#include "child.h"

namespace moonpool::processes {
namespace {

size_t RssBytes() {
  std::ifstream in("/proc/self/statm");
  size_t pages = 0;
  size_t resident = 0;
  in >> pages >> resident;
  return resident * 4096;
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Established TCP connections of this network namespace, both ends counted.
size_t Established() {
  size_t count = 0;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    std::string line;
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string index, local, remote, state;
      words >> index >> local >> remote >> state;
      if (state == "01") ++count;
    }
  }
  return count;
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.flush();
  return out.good();
}

// 20,000 transfers by 32 threads where the kernel has 1,024 ports to give. Answers "ok" or what went wrong.
MOONPOOL_CHILD(FewPorts, channel) {
  if (::unshare(CLONE_NEWNET) != 0) {
    channel.Send("no namespace");
    return;
  }
  const UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq up{};
  std::strncpy(up.ifr_name, "lo", sizeof(up.ifr_name) - 1);
  up.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(any.get(), SIOCSIFFLAGS, &up) != 0 ||
      !WriteFile("/proc/sys/net/ipv4/ip_local_port_range", "20000 21023")) {
    channel.Send("no port range");
    return;
  }
  Local a("tcp");
  Local b("tcp");
  const auto segment = a.Open(b.engine->address());
  std::atomic<int> failed{0};
  std::atomic<size_t> most{0};
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 32; ++t) {
      threads.emplace_back("client", [&, t](const std::stop_token&) {
        for (int i = 0; i < 625; ++i) {
          const uint64_t at = static_cast<uint64_t>(t) * 4096;
          if (!a.Write(segment, a.at(at), b.at(at), 4096).ok()) ++failed;
          if (t == 0 && i % 25 == 0) most = std::max(most.load(), Established());
        }
      });
    }
    for (Thread& thread : threads) thread.Join();
  }
  // Both ends of each connection are here.
  channel.Send(Str(failed == 0 && most > 0 && most / 2 <= 64 ? "ok" : "bad", ": ", failed,
                   " failed, at most ", most / 2, " connections"));
}

TEST(Resources, ConnectionsAreFewAndReused) {
  testing::ChildProcess child("FewPorts");
  const auto answer = child.channel().Receive(testing::Patience(std::chrono::seconds(120)));
  ASSERT_TRUE(answer.has_value());
  if (answer->text.rfind("no ", 0) == 0)
    GTEST_SKIP() << answer->text << " may be made here (not root?)";
  std::printf("%s\n", answer->text.c_str());
  EXPECT_EQ(answer->text.substr(0, 2), "ok") << answer->text;
}

MOONPOOL_CHILD(AtRest, channel) {
  Local a("tcp", 4096);
  Local b("tcp", 4096);
  const auto segment = a.Open(b.engine->address());
  for (int i = 0; i < 100; ++i) (void)a.Write(segment, a.at(0), b.at(0), 64);
  ::poll(nullptr, 0, 200);
  const double before = CpuSeconds();
  ::poll(nullptr, 0, 2000);
  channel.Send(Str(RssBytes(), " ", (CpuSeconds() - before) / 2));
}

TEST(Resources, TwoEnginesAtRestAreSmallAndIdle) {
  testing::ChildProcess child("AtRest");
  const auto answer = child.channel().Receive(Long());
  ASSERT_TRUE(answer.has_value());
  std::istringstream words(answer->text);
  size_t rss = 0;
  double cpu = 1;
  words >> rss >> cpu;
  std::printf("two engines at rest: %.1f MB RSS, %.2f %% of a core\n",
              static_cast<double>(rss) / 1e6, cpu * 100);
  if (!kSanitized) {
    EXPECT_LT(rss, 60u << 20);  // 30 MB each
    EXPECT_LT(cpu, 0.02);       // 1 % each
  }
}

TEST(Resources, AMillionTransfersLeaveNothingBehind) {
  Local a("tcp");
  Local b("tcp");
  const auto segment = a.Open(b.engine->address());
  std::vector<uint64_t> local, remote, lengths;
  for (uint64_t i = 0; i < 2000; ++i) {
    local.push_back(a.at(i * 128));
    remote.push_back(b.at(i * 128));
    lengths.push_back(64);
  }
  auto run = [&](int batches) {
    for (int i = 0; i < batches; ++i) {
      const engine::Group group{segment, transport::Op::kWrite, local, remote, lengths};
      engine::BatchRequest request;
      request.groups = {&group, 1};
      request.wait_follows = true;
      const auto batch = a.engine->Submit(request);
      ASSERT_TRUE(batch.ok());
      ASSERT_TRUE(a.engine->Wait(*batch, Long()).ok());
      ASSERT_TRUE(a.engine->Release(*batch).ok());
    }
  };
  run(50);
  const size_t before = RssBytes();
  run(500);  // 1,000,000 transfers
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(a.Write(segment, a.at(0), b.at(0), 64).ok());
  const size_t after = RssBytes();
  std::printf("grown by %.2f MB\n",
              (static_cast<double>(after) - static_cast<double>(before)) / 1e6);
  if (!kSanitized) {
    EXPECT_LT(after, before + (4 << 20));
  }
  EXPECT_EQ(a.engine->Describe().batches_live, 0u);
}

// What a signal handler can reach: a program has one such cell.
engine::Engine*& EngineOfHandler() {
  // tidy: allow(static) a signal handler gets no argument
  static engine::Engine* engine = nullptr;
  return engine;
}

MOONPOOL_CHILD(Signalled, channel) {
  Local a("tcp");
  EngineOfHandler() = a.engine.get();
  struct sigaction action {};
  action.sa_handler = [](int) { EngineOfHandler()->RequestClose(); };
  ::sigaction(SIGTERM, &action, nullptr);
  channel.Send("ready");
  const auto notes =
      a.engine->TakeNotifications(1, kNever - a.clock.Now());  // waits until it is closed
  channel.Send(Str(notes.size(), " ", CodeName(a.engine->Open("127.0.0.1:1", Long()).code())));
}

TEST(Resources, ASignalHandlerMayAskToClose) {
  testing::ChildProcess child("Signalled");
  ASSERT_TRUE(child.channel().Receive(Long()).has_value());
  ASSERT_EQ(::kill(child.pid(), SIGTERM), 0);
  const auto answer = child.channel().Receive(Long());
  ASSERT_TRUE(answer.has_value()) << "it did not end";
  EXPECT_EQ(answer->text, "0 cancelled");
  EXPECT_TRUE(child.Wait(Long()).has_value());
}

}  // namespace
}  // namespace moonpool::processes
