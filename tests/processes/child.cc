#include "child.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <sstream>

#include "base/check.h"
#include "base/str.h"
#include "transport/builtin.h"

namespace moonpool::processes {
namespace {

std::unique_ptr<engine::Engine> MakeEngine(Clock& clock, Logger& log, const std::string& transport,
                                           const std::string& listen) {
  engine::Options options;
  options.listen = listen;
  if (!transport.empty()) options.transports = {transport};
  auto made = engine::Engine::Create(
      options, {clock, log, transport::BuiltinFactories(), nullptr, nullptr, {}, true});
  if (!made.ok()) {
    ADD_FAILURE() << made.status().ToString();
    return nullptr;
  }
  return std::move(made).value();
}

}  // namespace

// First message: "transport|listen|bytes" with the shared memory; answer: "address base". Then commands:
// "write ADDRESS REMOTE BYTES TIMEOUT_MS".
MOONPOOL_CHILD(Engine, channel) {
  auto hello = channel.Receive();
  if (!hello) return;
  std::istringstream words(hello->text);
  std::string transport, listen, bytes_text;
  std::getline(words, transport, '|');
  std::getline(words, listen, '|');
  std::getline(words, bytes_text, '|');
  const size_t bytes = std::stoull(bytes_text);
  testing::SharedMemory memory(std::move(hello->fd), bytes);
  SystemClock clock;
  Logger log{LogLevel::kError};
  auto engine = MakeEngine(clock, log, transport, listen);
  if (!engine) return;
  MOONPOOL_CHECK(engine->Register(memory.data(), bytes, Rights::kReadWrite).ok());
  const auto base = reinterpret_cast<uint64_t>(memory.data());
  channel.Send(Str(engine->address(), " ", base));
  while (auto command = channel.Receive()) {
    std::istringstream parts(command->text);
    std::string verb, address;
    uint64_t remote = 0, size = 0, timeout_ms = 0;
    parts >> verb >> address >> remote >> size >> timeout_ms;
    const auto segment = engine->Open(address, Long());
    if (!segment.ok()) {
      channel.Send(segment.status().ToString());
      continue;
    }
    Status status;
    // A batch that ends after its time, well or not, is the last: whoever froze this process looks at the memory now.
    for (bool in_time = true; status.ok() && in_time;) {
      const Time began = clock.Now();
      const engine::Group group{
          *segment, transport::Op::kWrite, {&base, 1}, {&remote, 1}, {&size, 1}};
      engine::BatchRequest request;
      request.groups = {&group, 1};
      request.timeout = std::chrono::milliseconds(timeout_ms);
      const auto batch = engine->Submit(request);
      status = batch.ok() ? engine->Wait(*batch, Long()) : batch.status();
      if (batch.ok()) (void)engine->Release(*batch);
      in_time = clock.Now() - began < std::chrono::milliseconds(timeout_ms);
    }
    channel.Send(status.ToString());
  }
}

Remote::Remote(const RemoteOptions& options) : shared_(options.bytes), child_("Engine") {
  child_.channel().Send(Str(options.transport, "|", options.listen, "|", options.bytes),
                        shared_.fd());
  const auto answer = child_.channel().Receive(Long());
  if (!answer) {
    ADD_FAILURE() << "the child's engine did not start";
    return;
  }
  std::istringstream words(answer->text);
  words >> address_ >> base_;
}

void Remote::StartWriting(const std::string& to, uint64_t remote, uint64_t bytes,
                          Duration timeout) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  child_.channel().Send(Str("write ", to, " ", remote, " ", bytes, " ", ms));
}

std::string Remote::WaitForEnd() {
  const auto answer = child_.channel().Receive(Long());
  return answer ? answer->text : "no answer";
}

Local::Local(const std::string& transport, size_t bytes, const std::string& listen)
    : engine(MakeEngine(clock, log, transport, listen)) {
  if (!engine) return;
  auto allocated = engine->Allocate(bytes, Rights::kReadWrite, false);
  MOONPOOL_CHECK(allocated.ok());
  region = *allocated;
}

engine::SegmentHandle Local::Open(const std::string& address) {
  const auto opened = engine->Open(address, Long());
  if (!opened.ok()) ADD_FAILURE() << opened.status().ToString();
  return opened.ok() ? *opened : 0;
}

Status Local::Move(engine::SegmentHandle segment, transport::Op op, std::vector<uint64_t> range,
                   Duration timeout) {
  const engine::Group group{segment, op, {&range[0], 1}, {&range[1], 1}, {&range[2], 1}};
  engine::BatchRequest request;
  request.groups = {&group, 1};
  request.timeout = timeout;
  request.wait_follows = true;
  MOONPOOL_ASSIGN_OR_RETURN(const auto batch, engine->Submit(request));
  const Status status = engine->Wait(batch, timeout + Long());
  const Status released = engine->Release(batch);
  return status.ok() ? released : status;
}

}  // namespace moonpool::processes
