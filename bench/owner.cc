#include "owner.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/str.h"
#include "engine/engine.h"
#include "floors.h"
#include "transport/builtin.h"

namespace moonpool::bench {

Result<Owner> StartOwner(const OwnerOptions& options) {
  int down[2];
  int up[2];
  if (::pipe(down) != 0 || ::pipe(up) != 0) return Status(Code::kExhausted, "no pipes");
  const std::vector<std::string> words = {"moonpool_bench",
                                          "owner",
                                          options.transport.empty() ? "auto" : options.transport,
                                          options.checksum ? "1" : "0",
                                          options.engine_memory ? "1" : "0",
                                          std::to_string(options.bytes)};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(down[0], STDIN_FILENO);
    ::dup2(up[1], STDOUT_FILENO);
    for (const int fd : {down[0], down[1], up[0], up[1]}) ::close(fd);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  ::close(down[0]);
  ::close(up[1]);
  Owner owner;
  owner.pid = pid;
  owner.bytes = options.bytes;
  owner.lifeline.Reset(down[1]);
  std::string line;
  char c = 0;
  while (::read(up[0], &c, 1) == 1 && c != '\n') line += c;
  ::close(up[0]);
  char address[256];
  unsigned port = 0;
  unsigned long long base = 0;
  if (std::sscanf(line.c_str(), "%255s %llu %u", address, &base, &port) != 3) {
    return Status(Code::kUnavailable, Str("the owner did not start: ", line));
  }
  owner.address = address;
  owner.base = base;
  owner.floor_port = static_cast<uint16_t>(port);
  return owner;
}

void StopOwner(Owner& owner) {
  owner.lifeline.Reset();
  if (owner.pid > 0) ::waitpid(owner.pid, nullptr, 0);
  owner.pid = -1;
}

int OwnerMain(int argc, char** argv) {
  if (argc != 6) return 2;
  engine::Options options;
  options.listen = "127.0.0.1:0";
  if (std::strcmp(argv[2], "auto") != 0) options.transports = {argv[2]};
  options.checksum = std::strcmp(argv[3], "1") == 0;
  const uint64_t bytes = std::strtoull(argv[5], nullptr, 10);
  SystemClock clock;
  Logger log(LogLevel::kWarning);
  auto made = engine::Engine::Create(
      options, {clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}, true});
  if (!made.ok()) {
    std::fprintf(stderr, "owner: %s\n", made.status().ToString().c_str());
    return 1;
  }
  std::vector<uint8_t> heap;
  uint64_t base = 0;
  if (std::strcmp(argv[4], "1") == 0) {
    auto region = (*made)->Allocate(bytes, Rights::kReadWrite, false);
    if (!region.ok()) return 1;
    base = region->address;
    std::memset(reinterpret_cast<void*>(base), 1, bytes);
  } else {
    heap.assign(bytes, 1);
    base = reinterpret_cast<uint64_t>(heap.data());
    if (!(*made)->Register(heap.data(), bytes, Rights::kReadWrite).ok()) return 1;
  }
  const uint16_t port = ServeFloors();
  std::printf("%s %llu %u\n", (*made)->address().c_str(), static_cast<unsigned long long>(base),
              port);
  std::fflush(stdout);
  char c = 0;
  while (::read(STDIN_FILENO, &c, 1) > 0) continue;
  (*made)->Close();
  std::_Exit(0);  // the floor's threads are not joined
}

}  // namespace moonpool::bench
