#pragma once

// The conformance suite of the transport contract (transport/transport.h): every promise that the
// contract makes is a test here, and every leaf runs all of them. A leaf's test is one line:
//
//   #include "transport/conformance.h"
//   #include "transport/foo/foo.h"
//   MOONPOOL_TRANSPORT_CONFORMANCE(Foo, [] {
//     return moonpool::transport::conformance::Params{.factory = moonpool::foo::MakeFactory()};
//   });
//
// and its CMake line links moonpool::transport_conformance. The tests are then called
// FooConformance.<behaviour>. What a leaf cannot do it says in `Params::cannot`, with the reason, and the
// tests concerned print it and are skipped; so are all when the factory says kUnsupported.
//
// The suite plays both sides in one process (each node with its own RegionTable, ArenaSet, NodeId and
// Transport), and starts children (testing/child_process.h) where a side is to be frozen or killed.
//
// Threads: for tests; the line above runs before main.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/transport.h"

namespace moonpool::transport::conformance {

// What the transports of one test stand on: the clock, and how time passes. Most leaves need none of
// their own (real time, and the factory); a simulated one does.
class Ground {
 public:
  virtual ~Ground() = default;
  virtual Clock& clock() = 0;
  virtual Result<std::unique_ptr<Transport>> Create(const Environment& environment,
                                                    const TransportOptions& options) = 0;
  // Lets time pass: `step`, or less when one of the descriptors becomes readable.
  virtual void Pass(std::span<const int> readable, Duration step) = 0;
};

// Why a leaf cannot take part in some tests. Empty: it can.
struct Limits {
  std::string processes;  // both sides must live in one process
  std::string unmapped;   // memory that was unmapped under it ends the process
  std::string dial;       // it has no listening socket to pour garbage into
  std::string redirect;   // its address holds no TCP port
};

struct Params {
  Factory factory;
  TransportOptions options = {};
  std::string host = "127.0.0.1";  // where the nodes listen and are reached
  Limits cannot = {};
  // Connects a plain stream socket to where the transport with this address listens; invalid on failure.
  std::function<UniqueFd(const std::string& address)> dial = {};
  // The address with its TCP port replaced, so that a proxy of the suite stands in between; and that port.
  std::function<std::string(const std::string& address, uint16_t port)> redirect = {};
  std::function<uint16_t(const std::string& address)> port = {};
  // A world of its own for each test; empty: real time.
  std::function<std::unique_ptr<Ground>()> ground = {};
  uint64_t bulk_bytes = 16u << 20;  // what "a large transfer" is; at least 4 MiB
};

// Which tests an instance runs. A leaf runs all of them once; further instances of it, with other
// options, need not repeat what the options do not change (endings, deadlines, peers, processes).
enum class Part { kAll, kData };  // kData: data, back pressure and regions

// What the macro calls. Returns true so that a constant can be initialised with it.
bool Register(const char* name, std::function<Params()> make, Part part = Part::kAll);

}  // namespace moonpool::transport::conformance

#define MOONPOOL_TRANSPORT_CONFORMANCE(name, ...)                            \
  [[maybe_unused]] static const bool moonpool_transport_conformance_##name = \
      ::moonpool::transport::conformance::Register(#name, __VA_ARGS__)
