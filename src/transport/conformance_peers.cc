#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/str.h"
#include "transport/conformance_proxy.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

// Runs OpenPeer with a deadline `limit` from now, and checks that it is kept.
Status TryOpen(World& world, Node& node, const PeerOptions& options, Duration limit) {
  const Time deadline = world.In(limit);
  auto peer = node.transport().OpenPeer(options, deadline);
  EXPECT_LT(world.Now() - deadline, Patience(seconds(10))) << "OpenPeer outlived its deadline";
  return peer.ok() ? Status::Ok() : peer.status();
}

bool Mentions(const Status& status, std::string_view text) {
  return status.message().find(text) != std::string::npos;
}

void AnotherIdIsStale(World& world) {
  Pair pair(world, {});
  for (const bool node : {true, false}) {
    PeerOptions options = pair.there.address();
    ++(node ? options.id.node : options.id.incarnation);
    const Status status = TryOpen(world, pair.here, options, Patience());
    EXPECT_EQ(CodeName(status.code()), CodeName(Code::kStale)) << status.ToString();
    EXPECT_TRUE(Mentions(status, "there")) << "does not name the peer: " << status.message();
  }
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
}

void GarbageAddressesAreErrors(World& world) {
  Pair pair(world, {});
  Random random(5);
  std::vector<std::string> garbage = {"", std::string(1, '\0'), "x", std::string(4096, '\xff'),
                                      std::string(100'000, 'a')};
  for (int i = 0; i < 200; ++i) {
    std::string noise(1 + random.Below(200), '\0');
    for (char& each : noise) each = static_cast<char>(random.Next());
    garbage.push_back(noise);
  }
  const std::string good = pair.there.transport().Address();
  for (size_t size = 0; size < good.size(); ++size) garbage.push_back(good.substr(0, size));
  garbage.push_back(good + "x");
  for (const std::string& blob : garbage) {
    PeerOptions options = pair.there.address();
    options.address = blob;
    const Status status = TryOpen(world, pair.here, options, milliseconds(500));
    EXPECT_FALSE(status.ok()) << "an address of " << blob.size() << " bytes of garbage was taken";
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
}

// A wrong byte may still be an address, of somebody else or of nobody; it must end in time.
void SpoiltAddressesEndInTime(World& world) {
  Pair pair(world, {});
  const std::string good = pair.there.transport().Address();
  for (size_t i = 0; i < good.size(); ++i) {
    PeerOptions options = pair.there.address();
    options.address[i] = static_cast<char>(options.address[i] ^ 0x21);
    (void)TryOpen(world, pair.here, options, milliseconds(200)).ok();
  }
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
}

void WrongHostsEndInTime(World& world) {
  Pair pair(world, {});
  for (const char* host :
       {"", "not an address", "999.1.1.1", "203.0.113.1", "2001:db8::1", "[::", "*"}) {
    PeerOptions options = pair.there.address();
    options.host = host;
    (void)TryOpen(world, pair.here, options, milliseconds(200)).ok();
  }
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
}

void PassedDeadlineOpensNothing(World& world) {
  if (world.params().ground) GTEST_SKIP() << "virtual time does not pass inside a call";
  Node& here = world.Add("here");
  Node& there = world.Add("there");
  const Status status = TryOpen(world, here, there.address(), -seconds(1));
  EXPECT_EQ(CodeName(status.code()), CodeName(Code::kTimedOut)) << status.ToString();
}

// --- What needs a TCP port in the address

#define NEEDS_REDIRECT(world)                                        \
  if (!(world).params().redirect || !(world).params().port) {        \
    GTEST_SKIP() << ((world).params().cannot.redirect.empty()        \
                         ? "the leaf gives no `redirect` and `port`" \
                         : (world).params().cannot.redirect);        \
  }

PeerOptions Redirected(World& world, const Node& node, uint16_t port) {
  PeerOptions options = node.address();
  options.address = world.params().redirect(options.address, port);
  return options;
}

void PortWhereNobodyListensIsUnavailable(World& world) {
  NEEDS_REDIRECT(world);
  Node& here = world.Add("here");
  Node& there = world.Add("there");
  const Listener deaf(world.params().host);  // bound, so that nobody else takes the port
  const Status status =
      TryOpen(world, here, Redirected(world, there, deaf.port()), Patience(seconds(10)));
  EXPECT_EQ(CodeName(status.code()), CodeName(Code::kUnavailable)) << status.ToString();
  EXPECT_TRUE(Mentions(status, "there")) << status.message();
  EXPECT_TRUE(Mentions(status, "connect")) << status.message();
}

void PortThatNeverAnswersTimesOut(World& world) {
  NEEDS_REDIRECT(world);
  Node& here = world.Add("here");
  Node& there = world.Add("there");
  Listener silent(world.params().host);
  silent.Listen();
  const Status status =
      TryOpen(world, here, Redirected(world, there, silent.port()), milliseconds(300));
  EXPECT_EQ(CodeName(status.code()), CodeName(Code::kTimedOut)) << status.ToString();
  EXPECT_TRUE(Mentions(status, "there")) << status.message();
  EXPECT_TRUE(Mentions(status, "handshake")) << status.message();
}

void PortThatAnswersGarbageIsAnError(World& world) {
  NEEDS_REDIRECT(world);
  Node& here = world.Add("here");
  Node& there = world.Add("there");
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const GarbageServer server(world.params().host, seed);
    const Status status =
        TryOpen(world, here, Redirected(world, there, server.port()), Patience(seconds(10)));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), Code::kTimedOut) << "garbage is known at once: " << status.ToString();
    EXPECT_TRUE(Mentions(status, "there")) << status.message();
    EXPECT_TRUE(Mentions(status, "handshake")) << status.message();
  }
}

void CutConnectionsFailTheirSlicesAndAreMadeAgain(World& world) {
  NEEDS_REDIRECT(world);
  Pair pair(world, {.size = world.params().bulk_bytes});
  Proxy proxy(world.params().host, world.params().port(pair.there.transport().Address()));
  auto peer = pair.here.Open(Redirected(world, pair.there, proxy.port()));
  ASSERT_NE(peer, nullptr);
  Random random(6);
  for (const Op op : kOps) {
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE(Str("op ", static_cast<int>(op), " round ", round));
      pair.flight.Bulk(*peer, pair.Whole(op, world.In(Patience(seconds(20)))));
      pair.flight.PumpFor(std::chrono::microseconds(random.Below(8000)));
      proxy.CutAll();
      ASSERT_TRUE(pair.flight.Finish());
      pair.local.Fill(60);
      pair.remote.Fill(61);
      pair.flight.PumpFor(milliseconds(20));
      EXPECT_EQ(pair.local.Errors(60), "");
      EXPECT_EQ(pair.remote.Errors(61), "");
      Range small = pair.Whole(op);
      small.size = 4096;
      EXPECT_TRUE(pair.flight.RunUntilOk(*peer, small));
    }
  }
}

void StalledNetworkTimesOutAndNothingArrivesLate(World& world) {
  NEEDS_REDIRECT(world);
  Pair pair(world, {.size = world.params().bulk_bytes});
  Proxy proxy(world.params().host, world.params().port(pair.there.transport().Address()));
  auto peer = pair.here.Open(Redirected(world, pair.there, proxy.port()));
  ASSERT_NE(peer, nullptr);
  Random random(7);
  for (const Op op : kOps) {
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE(Str("op ", static_cast<int>(op), " round ", round));
      const Time deadline = world.In(milliseconds(150));
      pair.flight.Bulk(*peer, pair.Whole(op, deadline));
      pair.flight.PumpFor(std::chrono::microseconds(random.Below(10'000)));
      proxy.SetStalled(true);
      ASSERT_TRUE(pair.flight.Finish());
      EXPECT_LT(world.Now() - deadline, kSettleMax + Patience(seconds(10)));
      pair.local.Fill(70);
      pair.remote.Fill(71);
      proxy.SetStalled(false);
      pair.flight.PumpFor(milliseconds(50));
      EXPECT_EQ(pair.local.Errors(70), "");
      EXPECT_EQ(pair.remote.Errors(71), "");
      Range small = pair.Whole(op);
      small.size = 4096;
      EXPECT_TRUE(pair.flight.RunUntilOk(*peer, small));
    }
  }
}

void FlippedBitsAreNeverOk(World& world) {
  NEEDS_REDIRECT(world);
  Pair pair(world, {.size = 4 << 20});
  if (!pair.here.transport().capabilities().checksum) GTEST_SKIP() << "it has no checksum";
  Proxy proxy(world.params().host, world.params().port(pair.there.transport().Address()));
  auto peer = pair.here.Open(Redirected(world, pair.there, proxy.port()));
  ASSERT_NE(peer, nullptr);
  Random random(8);
  for (const Op op : kOps) {
    for (int round = 0; round < 10; ++round) {
      SCOPED_TRACE(Str("op ", static_cast<int>(op), " round ", round));
      pair.local.Fill(80);
      pair.remote.Fill(81);
      proxy.CorruptAt(random.Below(3 << 20));
      const Range whole = pair.Whole(op, world.In(Patience(seconds(20))));
      const uint64_t step = pair.here.transport().capabilities().slice_bytes;
      std::vector<std::pair<uint64_t, uint64_t>> slices;  // cookie, offset
      for (uint64_t at = 0; at < whole.size; at += step) {
        const auto size = static_cast<uint32_t>(std::min(step, whole.size - at));
        slices.emplace_back(pair.flight.Add({peer.get(),
                                             op,
                                             whole.deadline,
                                             {{whole.local + at, whole.remote + at, size, 0}},
                                             {whole.key},
                                             {}}),
                            at);
      }
      ASSERT_TRUE(pair.flight.Finish());
      Buffer& target = op == Op::kRead ? pair.local : pair.remote;
      for (const auto& [cookie, at] : slices) {
        if (pair.flight.code(cookie) != Code::kOk) continue;
        EXPECT_EQ(PatternErrors(target.data() + at, std::min(step, whole.size - at),
                                op == Op::kRead ? 81 : 80, at),
                  "");
      }
      EXPECT_TRUE(
          pair.flight.RunUntilOk(*peer, {op, whole.local, whole.remote, whole.key, 4096, kNever}));
    }
  }
  EXPECT_GT(pair.here.transport().Metrics().checksum_errors +
                pair.there.transport().Metrics().checksum_errors,
            0u);
}

// --- What needs a socket to pour garbage into

#define NEEDS_DIAL(world)                                                                  \
  if (!(world).params().dial) {                                                            \
    GTEST_SKIP() << ((world).params().cannot.dial.empty() ? "the leaf gives no `dial`"     \
                                                          : (world).params().cannot.dial); \
  }

// While `disturb` is called 200 times, a peer's transfers go on; afterwards a new one connects.
void ServeWhile(World& world,
                const std::function<void(int round, const std::string& address)>& disturb) {
  Pair pair(world, {.size = 1 << 20});
  pair.remote.Fill(90);
  const std::string address = pair.there.transport().Address();
  for (int round = 0; round < 200; ++round) {
    disturb(round, address);
    if (round % 10 == 0) {
      pair.local.Fill(91);
      pair.flight.Bulk(*pair.peer, pair.Whole(Op::kRead, world.In(Patience())));
      ASSERT_TRUE(pair.flight.Finish());
      ASSERT_EQ(pair.local.Errors(90), "");
    }
  }
  EXPECT_EQ(pair.flight.Count(Code::kOk), pair.flight.completed());
  Node& late = world.Add("late");
  Buffer buffer(late, {.size = 4096});
  auto peer = late.Open(pair.there);
  ASSERT_NE(peer, nullptr);
  Flight flight(world, late);
  EXPECT_TRUE(flight.RunUntilOk(*peer, {Op::kRead, buffer.address(), pair.remote.address(),
                                        pair.remote.key(), 4096, kNever}));
}

void GarbageConnectionsHurtOnlyThemselves(World& world) {
  NEEDS_DIAL(world);
  Random random(9);
  ServeWhile(world, [&](int, const std::string& address) {
    const UniqueFd fd = world.params().dial(address);
    ASSERT_TRUE(fd.valid());
    std::string noise(1 + random.Below(4000), '\0');
    for (char& each : noise) each = static_cast<char>(random.Next());
    (void)!::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

void HalfOpenConnectionsHurtOnlyThemselves(World& world) {
  NEEDS_DIAL(world);
  std::vector<UniqueFd> held;
  ServeWhile(world, [&](int round, const std::string& address) {
    held.push_back(world.params().dial(address));
    ASSERT_TRUE(held.back().valid());
    // Every other one says something that might be the beginning of a greeting.
    if (round % 2) (void)!::send(held.back().get(), "M", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

void ConnectionsOverTheBoundAreClosed(World& world) {
  NEEDS_DIAL(world);
  world.options().connections_max = 16;
  Pair pair(world, {});
  ASSERT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);  // connected before
  std::vector<UniqueFd> held;
  for (int i = 0; i < 64; ++i)
    held.push_back(world.params().dial(pair.there.transport().Address()));
  EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(Op::kRead)), Code::kOk);
  EXPECT_LE(pair.there.transport().Metrics().connections_open, 16u + 4u);
  held.clear();
  // The places are free again.
  Node& late = world.Add("late");
  EXPECT_TRUE(world.Until(
      [&] { return late.transport().OpenPeer(pair.there.address(), world.In(seconds(1))).ok(); }));
}

constexpr Case kCases[] = {
    {"AnotherIdIsStale", AnotherIdIsStale},
    {"GarbageAddressesAreErrors", GarbageAddressesAreErrors},
    {"SpoiltAddressesEndInTime", SpoiltAddressesEndInTime},
    {"WrongHostsEndInTime", WrongHostsEndInTime},
    {"PassedDeadlineOpensNothing", PassedDeadlineOpensNothing},
    {"PortWhereNobodyListensIsUnavailable", PortWhereNobodyListensIsUnavailable},
    {"PortThatNeverAnswersTimesOut", PortThatNeverAnswersTimesOut},
    {"PortThatAnswersGarbageIsAnError", PortThatAnswersGarbageIsAnError},
    {"CutConnectionsFailTheirSlicesAndAreMadeAgain", CutConnectionsFailTheirSlicesAndAreMadeAgain},
    {"StalledNetworkTimesOutAndNothingArrivesLate", StalledNetworkTimesOutAndNothingArrivesLate},
    {"FlippedBitsAreNeverOk", FlippedBitsAreNeverOk},
    {"GarbageConnectionsHurtOnlyThemselves", GarbageConnectionsHurtOnlyThemselves},
    {"HalfOpenConnectionsHurtOnlyThemselves", HalfOpenConnectionsHurtOnlyThemselves},
    {"ConnectionsOverTheBoundAreClosed", ConnectionsOverTheBoundAreClosed},
};

}  // namespace

std::span<const Case> PeerCases() { return kCases; }

}  // namespace moonpool::transport::conformance
