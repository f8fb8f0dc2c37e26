#include <limits>
#include <string>
#include <vector>

#include "base/str.h"
#include "transport/conformance_world.h"

namespace moonpool::transport::conformance {
namespace {

constexpr size_t kMargin = 4096;

// A pair whose regions have mapped memory of nobody's business on both sides.
struct Fenced : Pair {
  explicit Fenced(World& world) : Pair(world, {.size = 16'384, .margin = kMargin}) {}

  // A slice that is in order: 64 bytes in the middle.
  Request Good(Op op) const {
    return {peer.get(),     op,
            kNever,         {{local.info().address + 200, remote.info().address + 200, 64, 0}},
            {remote.key()}, {}};
  }
};

struct Forbidden {
  const char* name;
  Code code;
  void (*change)(Request& request, const Fenced& pair);
};

constexpr Forbidden kForbidden[] = {
    {"before the region", Code::kInvalidArgument,
     [](Request& r, const Fenced& p) { r.pieces[0].remote = p.remote.info().address - 64; }},
    {"straddling its start", Code::kInvalidArgument,
     [](Request& r, const Fenced& p) { r.pieces[0].remote = p.remote.info().address - 1; }},
    {"after the region", Code::kInvalidArgument,
     [](Request& r, const Fenced& p) {
       r.pieces[0].remote = p.remote.info().address + p.remote.info().size;
     }},
    {"straddling its end", Code::kInvalidArgument,
     [](Request& r, const Fenced& p) {
       r.pieces[0].remote = p.remote.info().address + p.remote.info().size - 63;
     }},
    {"wrapping 64 bits", Code::kInvalidArgument,
     [](Request& r, const Fenced&) {
       r.pieces[0].remote = std::numeric_limits<uint64_t>::max() - 31;
     }},
    {"wrapping onto the region", Code::kInvalidArgument,
     [](Request& r, const Fenced& p) {
       r.pieces[0].remote = p.remote.info().address - (uint64_t{1} << 63);
     }},
    {"at null", Code::kInvalidArgument, [](Request& r, const Fenced&) { r.pieces[0].remote = 0; }},
    {"a piece of no bytes", Code::kInvalidArgument,
     [](Request& r, const Fenced&) { r.pieces[0].size = 0; }},
    {"a piece of 2^32 - 1 bytes", Code::kInvalidArgument,
     [](Request& r, const Fenced&) { r.pieces[0].size = 0xffffffff; }},
    {"no pieces", Code::kInvalidArgument, [](Request& r, const Fenced&) { r.pieces.clear(); }},
    {"no keys", Code::kInvalidArgument, [](Request& r, const Fenced&) { r.keys.clear(); }},
    {"a key that is not there", Code::kInvalidArgument,
     [](Request& r, const Fenced&) { r.pieces[0].key = 1; }},
    {"too many pieces", Code::kInvalidArgument,
     [](Request& r, const Fenced& p) {
       r.pieces[0].size = 1;
       r.pieces.resize(p.here.transport().capabilities().slice_pieces_max + 1, r.pieces[0]);
     }},
    {"a sum that does not add up", Code::kInvalidArgument,
     [](Request& r, const Fenced&) { r.bytes = 63; }},
    {"another access key", Code::kStale,
     [](Request& r, const Fenced&) { r.keys[0].access_key ^= 1; }},
    {"access key zero", Code::kStale, [](Request& r, const Fenced&) { r.keys[0].access_key = 0; }},
    {"another generation", Code::kStale, [](Request& r, const Fenced&) { ++r.keys[0].generation; }},
    {"an unused slot", Code::kStale, [](Request& r, const Fenced&) { r.keys[0].slot += 77; }},
    {"a slot out of range", Code::kStale,
     [](Request& r, const Fenced&) { r.keys[0].slot = 0xffffffff; }},
};

void ForbiddenSlicesAreRefusedAndTouchNothing(World& world) {
  Fenced pair(world);
  for (const Op op : kOps) {
    for (const Forbidden& each : kForbidden) {
      SCOPED_TRACE(Str(op == Op::kRead ? "read " : "write ", each.name));
      pair.local.Fill(1);
      pair.remote.Fill(2);
      Request bad = pair.Good(op);
      each.change(bad, pair);
      const uint64_t cookie = pair.flight.Add(std::move(bad));
      ASSERT_TRUE(pair.flight.Finish());
      EXPECT_EQ(CodeName(pair.flight.code(cookie)), CodeName(each.code));
      EXPECT_EQ(pair.local.Errors(1), "");
      EXPECT_EQ(pair.remote.Errors(2), "");
      const uint64_t good = pair.flight.Add(pair.Good(op));
      ASSERT_TRUE(pair.flight.Finish());
      EXPECT_EQ(pair.flight.code(good), Code::kOk) << "the lane is spoilt for the next slice";
    }
  }
}

// The last of many pieces is forbidden: bytes outside the good ones stay as they are.
void OneForbiddenPieceRefusesTheSlice(World& world) {
  Fenced pair(world);
  const uint32_t count =
      std::min<uint32_t>(16, pair.here.transport().capabilities().slice_pieces_max);
  for (const Op op : kOps) {
    pair.local.Fill(3);
    pair.remote.Fill(4);
    Request request = pair.Good(op);
    for (uint32_t i = 1; i < count; ++i) {
      request.pieces.push_back(request.pieces[0]);
      request.pieces[i].local += 64 * i;
      request.pieces[i].remote += 64 * i;
    }
    request.pieces.back().remote = pair.remote.info().address + pair.remote.info().size - 1;
    const uint64_t cookie = pair.flight.Add(std::move(request));
    ASSERT_TRUE(pair.flight.Finish());
    EXPECT_EQ(CodeName(pair.flight.code(cookie)), CodeName(Code::kInvalidArgument));
    Buffer& target = op == Op::kRead ? pair.local : pair.remote;
    const uint64_t seed = op == Op::kRead ? 3 : 4;
    const size_t start = kMargin + 200;
    const size_t end = start + 64 * (count - 1);
    EXPECT_EQ(PatternErrors(target.data(), start, seed), "");
    EXPECT_EQ(PatternErrors(target.data() + end, target.size() - end, seed, end), "");
  }
}

void MissingRightsRefuse(World& world) {
  Pair pair(world, {.size = 4096});
  Buffer read_only(pair.there, {.size = 4096, .rights = Rights::kRead});
  Buffer write_only(pair.there, {.size = 4096, .rights = Rights::kWrite});
  pair.local.Fill(5);
  read_only.Fill(6);
  write_only.Fill(7);
  const auto run = [&](Op op, const Buffer& buffer) {
    return pair.flight.Run(
        *pair.peer, {op, pair.local.address(), buffer.address(), buffer.key(), 4096, kNever});
  };
  EXPECT_EQ(run(Op::kWrite, read_only), Code::kInvalidArgument);
  EXPECT_EQ(run(Op::kRead, write_only), Code::kInvalidArgument);
  EXPECT_EQ(pair.local.Errors(5), "");
  EXPECT_EQ(read_only.Errors(6), "");
  EXPECT_EQ(write_only.Errors(7), "");
  EXPECT_EQ(run(Op::kWrite, write_only), Code::kOk);
  EXPECT_EQ(write_only.Errors(5), "");
  EXPECT_EQ(run(Op::kRead, read_only), Code::kOk);
  EXPECT_EQ(pair.local.Errors(6), "");
}

void KeyOfOneRegionDoesNotOpenAnother(World& world) {
  Pair pair(world, {.size = 4096});
  Buffer other(pair.there, {.size = 4096});
  pair.local.Fill(8);
  other.Fill(9);
  for (const Op op : kOps) {
    EXPECT_EQ(pair.flight.Run(*pair.peer, {op, pair.local.address(), other.address(),
                                           pair.remote.key(), 4096, kNever}),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(pair.local.Errors(8), "");
  EXPECT_EQ(other.Errors(9), "");
}

void DeregisteredRegionIsStaleAlsoWhenRegisteredAgain(World& world) {
  for (const Kind kind : {Kind::kPlain, Kind::kArena}) {
    Pair pair(world, {.size = 4096, .kind = kind});
    for (const Op op : kOps) {
      ASSERT_EQ(pair.flight.Run(*pair.peer, pair.Whole(op)), Code::kOk);
      const Range old = pair.Whole(op);
      ASSERT_TRUE(pair.remote.Deregister().ok());
      pair.local.Fill(10);
      pair.remote.Fill(11);
      EXPECT_EQ(CodeName(pair.flight.Run(*pair.peer, old)), CodeName(Code::kStale));
      pair.remote.Register();
      EXPECT_EQ(CodeName(pair.flight.Run(*pair.peer, old)), CodeName(Code::kStale));
      EXPECT_EQ(pair.local.Errors(10), "");
      EXPECT_EQ(pair.remote.Errors(11), "");
      EXPECT_EQ(pair.flight.Run(*pair.peer, pair.Whole(op)), Code::kOk);
    }
  }
}

// After Deregister has returned, what was under way touches the region's memory no more.
void DeregistrationInMidTransferFences(World& world) {
  Random random(12);
  for (const Kind kind : {Kind::kPlain, Kind::kArena}) {
    Pair pair(world, {.size = world.params().bulk_bytes, .kind = kind});
    for (const Op op : kOps) {
      for (int round = 0; round < 4; ++round) {
        SCOPED_TRACE(
            Str("kind ", static_cast<int>(kind), " op ", static_cast<int>(op), " round ", round));
        pair.flight.Bulk(*pair.peer, pair.Whole(op));
        pair.flight.PumpFor(std::chrono::microseconds(random.Below(3000)));
        ASSERT_TRUE(pair.remote.Deregister().ok());
        pair.remote.Fill(100);
        ASSERT_TRUE(pair.flight.Finish());
        EXPECT_EQ(pair.flight.Count(Code::kOk) + pair.flight.Count(Code::kStale) +
                      pair.flight.Count(Code::kUnavailable),
                  pair.flight.completed());
        pair.local.Fill(101);
        pair.flight.PumpFor(milliseconds(20));
        EXPECT_EQ(pair.remote.Errors(100), "");
        EXPECT_EQ(pair.local.Errors(101), "");
        pair.remote.Register();
        EXPECT_TRUE(pair.flight.RunUntilOk(*pair.peer, [&] {
          Range range = pair.Whole(op);
          range.size = 4096;
          return range;
        }()));
      }
    }
  }
}

// Pages vanish under a registered region: an error, not the end of the process.
void UnmapOneSide(World& world, bool owner) {
  if (!world.params().cannot.unmapped.empty()) GTEST_SKIP() << world.params().cannot.unmapped;
  for (const size_t offset : {size_t{0}, size_t{64 * 1024}}) {  // all of it; the later part
    for (const Op op : kOps) {
      SCOPED_TRACE(Str("op ", static_cast<int>(op), " from ", offset));
      Pair pair(world, {.size = 256 * 1024});
      Buffer spare_local(pair.here, {.size = 4096});
      Buffer spare_remote(pair.there, {.size = 4096});
      spare_local.Fill(20);
      spare_remote.Fill(21);
      (owner ? pair.remote : pair.local).Unmap(offset);
      Request request{pair.peer.get(),     op, world.In(Patience(seconds(20))), {},
                      {pair.remote.key()}, {}};
      const auto size = static_cast<uint32_t>(
          std::min<uint64_t>(pair.remote.size(), pair.here.transport().capabilities().slice_bytes));
      if (size <= offset) continue;
      request.pieces = {{pair.local.address(), pair.remote.address(), size, 0}};
      const uint64_t cookie = pair.flight.Add(std::move(request));
      ASSERT_TRUE(pair.flight.Finish());
      EXPECT_NE(pair.flight.code(cookie), Code::kOk);
      EXPECT_TRUE(pair.flight.RunUntilOk(
          *pair.peer,
          {op, spare_local.address(), spare_remote.address(), spare_remote.key(), 4096, kNever}));
      EXPECT_EQ(spare_local.Errors(op == Op::kRead ? 21 : 20), "");
    }
  }
}
void UnmappedOwnerMemoryIsAnError(World& world) { UnmapOneSide(world, true); }
void UnmappedLocalMemoryIsAnError(World& world) { UnmapOneSide(world, false); }

void RefusalsAreCounted(World& world) {
  Fenced pair(world);
  for (const Op op : kOps) {
    Request bad = pair.Good(op);
    bad.keys[0].access_key ^= 1;
    pair.flight.Add(std::move(bad));
  }
  ASSERT_TRUE(pair.flight.Finish());
  // A one-sided transport finds it out at the initiator.
  EXPECT_GE(pair.there.transport().Metrics().requests_refused +
                pair.here.transport().Metrics().requests_refused,
            1u);
}

constexpr Case kCases[] = {
    {"ForbiddenSlicesAreRefusedAndTouchNothing", ForbiddenSlicesAreRefusedAndTouchNothing},
    {"OneForbiddenPieceRefusesTheSlice", OneForbiddenPieceRefusesTheSlice},
    {"MissingRightsRefuse", MissingRightsRefuse},
    {"KeyOfOneRegionDoesNotOpenAnother", KeyOfOneRegionDoesNotOpenAnother},
    {"DeregisteredRegionIsStaleAlsoWhenRegisteredAgain",
     DeregisteredRegionIsStaleAlsoWhenRegisteredAgain},
    {"DeregistrationInMidTransferFences", DeregistrationInMidTransferFences},
    {"UnmappedOwnerMemoryIsAnError", UnmappedOwnerMemoryIsAnError},
    {"UnmappedLocalMemoryIsAnError", UnmappedLocalMemoryIsAnError},
    {"RefusalsAreCounted", RefusalsAreCounted},
};

}  // namespace

std::span<const Case> RegionCases() { return kCases; }

}  // namespace moonpool::transport::conformance
