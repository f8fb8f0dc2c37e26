#include "transport/conformance_world.h"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/str.h"

namespace moonpool::transport::conformance {
namespace {

class RealGround final : public Ground {
 public:
  explicit RealGround(Factory factory) : factory_(std::move(factory)) {}
  Clock& clock() override { return clock_; }
  Result<std::unique_ptr<Transport>> Create(const Environment& environment,
                                            const TransportOptions& options) override {
    return factory_.create(environment, options);
  }
  void Pass(std::span<const int> readable, Duration step) override {
    std::vector<pollfd> waits;
    for (const int fd : readable) waits.push_back({fd, POLLIN, 0});
    const timespec limit{step.count() / 1'000'000'000, step.count() % 1'000'000'000};
    ::ppoll(waits.data(), waits.size(), &limit, nullptr);
  }

 private:
  SystemClock clock_;
  Factory factory_;
};

}  // namespace

NodeId RandomId() { return {SecureUint64(), SecureUint64()}; }

// --- Node

Node::Node(World& world, std::string name, NodeId id)
    : world_(world),
      name_(std::move(name)),
      id_(id),
      log_(LogLevel::kDebug, lines_.sink()),
      regions_(world.ground().clock()) {
  TransportOptions options = world.params().options;
  options.bind_host = world.params().host;
  auto transport =
      world.ground().Create({world.ground().clock(), log_, regions_, arenas_, id_}, options);
  if (!transport.ok()) ADD_FAILURE() << "create: " << transport.status().ToString();
  MOONPOOL_CHECK(transport.ok());
  transport_ = std::move(*transport);
  auto lane = transport_->OpenLane();
  if (!lane.ok()) ADD_FAILURE() << "open lane: " << lane.status().ToString();
  MOONPOOL_CHECK(lane.ok());
  lane_ = std::move(*lane);
}

Node::~Node() = default;

Time Node::In(Duration span) const { return world_.In(span); }

PeerOptions Node::address() const {
  return {name_, id_, world_.params().host, transport_->Address()};
}

std::unique_ptr<Peer> Node::Open(const PeerOptions& options) {
  auto peer = transport_->OpenPeer(options, world_.In(Patience()));
  if (!peer.ok()) {
    ADD_FAILURE() << "open peer: " << peer.status().ToString();
    return nullptr;
  }
  return std::move(*peer);
}

// --- Buffer

Buffer::Buffer(Node& node, const BufferOptions& options)
    : node_(node), options_(options), size_(options.size) {
  if (options_.kind == Kind::kArena) {
    auto arena = memory::Arena::Create({.size = size_});
    MOONPOOL_CHECK(arena.ok());
    arena_ = std::move(*arena);
    data_ = arena_->data();
    arena_number_ = node_.arenas().Add(arena_);
  } else if (options_.kind == Kind::kShared) {
    shared_ = std::make_unique<testing::SharedMemory>(size_);
    data_ = shared_->data();
  } else {
    void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MOONPOOL_CHECK(at != MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
  }
  Register();
}

Buffer::~Buffer() {
  if (registered_) {
    EXPECT_TRUE(Deregister().ok());
  }
  if (arena_) node_.arenas().Remove(arena_number_);
  if (options_.kind == Kind::kPlain) ::munmap(data_, size_);
}

int Buffer::fd() const {
  if (arena_) return arena_->fd();
  return shared_ ? shared_->fd() : -1;
}

void Buffer::Register() {
  auto info = node_.regions().Register({.address = address() + options_.margin,
                                        .size = size_ - 2 * options_.margin,
                                        .rights = options_.rights,
                                        .arena = arena_number_,
                                        .arena_offset = options_.margin});
  if (!info.ok()) ADD_FAILURE() << "register: " << info.status().ToString();
  MOONPOOL_CHECK(info.ok());
  info_ = *info;
  registered_ = true;
}

Status Buffer::Deregister() {
  registered_ = false;
  return node_.regions().Deregister(info_.address, node_.In(Patience()));
}

void Buffer::Unmap(size_t offset) {
  MOONPOOL_CHECK(options_.kind == Kind::kPlain);
  void* at = ::mmap(data_ + offset, size_ - offset, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  MOONPOOL_CHECK(at == data_ + offset);
}

// --- Flight

Flight::Flight(World& world, Node& node, Lane& lane) : world_(world), node_(node), lane_(lane) {}

Flight::~Flight() {
  Drop();
  EXPECT_EQ(lane_.in_flight(), 0u) << "slices in flight at the end of a test";
}

uint64_t Flight::Add(Request request) {
  const uint64_t cookie = next_++;
  auto entry = std::make_unique<Entry>();
  entry->request = std::move(request);
  const Request& kept = entry->request;
  uint64_t sum = 0;
  for (const Piece& piece : kept.pieces) sum += piece.size;
  entry->slice = {cookie, kept.op, kept.deadline, kept.pieces, kept.keys, kept.bytes.value_or(sum)};
  entries_.emplace(cookie, std::move(entry));
  queue_.push_back(cookie);
  return cookie;
}

size_t Flight::Bulk(Peer& peer, const Range& range) {
  const uint64_t step = node_.transport().capabilities().slice_bytes;
  size_t count = 0;
  for (uint64_t at = 0; at < range.size; at += step) {
    const auto size = static_cast<uint32_t>(std::min(step, range.size - at));
    Add({&peer,
         range.op,
         range.deadline,
         {{range.local + at, range.remote + at, size, 0}},
         {range.key},
         {}});
    ++count;
  }
  return count;
}

Code Flight::Run(Peer& peer, const Range& range) {
  const uint64_t cookie = Add({&peer,
                               range.op,
                               range.deadline,
                               {{range.local, range.remote, static_cast<uint32_t>(range.size), 0}},
                               {range.key},
                               {}});
  Finish();
  return code(cookie);
}

bool Flight::RunUntilOk(Peer& peer, const Range& range) {
  const Time limit = world_.In(Patience());
  Code code = Code::kInternal;
  while (world_.Now() < limit) {
    code = Run(peer, range);
    if (code == Code::kOk) return true;
    world_.Pass(milliseconds(5));
  }
  ADD_FAILURE() << "no slice succeeds any more; the last: " << CodeName(code) << ", "
                << peer.last_error().ToString() << "\n"
                << node_.lines().Text();
  return false;
}

bool Flight::Pump() {
  bool moved = false;
  while (!queue_.empty()) {
    Peer* peer = entries_.at(queue_.front())->request.peer;
    std::vector<Slice> slices;
    for (const uint64_t cookie : queue_) {
      const Entry& entry = *entries_.at(cookie);
      if (entry.request.peer != peer || slices.size() == 256) break;
      slices.push_back(entry.slice);
    }
    const size_t taken = lane_.Post(*peer, slices);
    EXPECT_LE(taken, slices.size());
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(taken));
    posted_ += taken;
    moved |= taken > 0;
    if (taken < slices.size()) break;
  }
  Completion out[64];
  const size_t count = lane_.Poll(out, world_.Now());
  EXPECT_LE(count, std::size(out));
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(entries_.erase(out[i].cookie), 1u)
        << "completion of a slice that is not in flight: cookie " << out[i].cookie;
    done_[out[i].cookie] = out[i];
  }
  return moved || count > 0;
}

bool Flight::Finish(Duration timeout) {
  const Time limit = world_.In(timeout);
  while (!entries_.empty()) {
    if (Pump()) continue;
    const Time now = world_.Now();
    if (now > limit) {
      ADD_FAILURE() << entries_.size() << " slices have not completed in time, " << done_.size()
                    << " have; the last lines of the log:\n"
                    << node_.lines().Text();
      return false;
    }
    const Time wake = std::min(lane_.wake_by(), After(now, milliseconds(100)));
    const int fd = lane_.event_fd();
    if (wake > now) world_.ground().Pass({&fd, 1}, wake - now);
  }
  return true;
}

void Flight::PumpFor(Duration span) {
  const Time limit = world_.In(span);
  while (world_.Now() < limit) {
    if (!Pump())
      world_.Pass(std::min<Duration>(std::chrono::microseconds(200), limit - world_.Now()));
  }
}

void Flight::Drop() {
  for (const uint64_t cookie : queue_) entries_.erase(cookie);
  queue_.clear();
}

const Completion* Flight::Find(uint64_t cookie) const {
  const auto it = done_.find(cookie);
  return it == done_.end() ? nullptr : &it->second;
}

Code Flight::code(uint64_t cookie) const {
  const Completion* completion = Find(cookie);
  EXPECT_NE(completion, nullptr) << "cookie " << cookie << " has not completed";
  return completion ? completion->code : Code::kInternal;
}

size_t Flight::Count(Code code) const {
  return static_cast<size_t>(std::count_if(
      done_.begin(), done_.end(), [code](const auto& each) { return each.second.code == code; }));
}

std::vector<uint64_t> Flight::InFlight() const {
  std::vector<uint64_t> cookies;
  for (const auto& [cookie, entry] : entries_) {
    if (std::find(queue_.begin(), queue_.end(), cookie) == queue_.end()) cookies.push_back(cookie);
  }
  return cookies;
}

// --- World

World::World(const Params& params, std::string instance)
    : params_(params), instance_(std::move(instance)) {
  ground_ = params_.ground ? params_.ground() : std::make_unique<RealGround>(params_.factory);
}

World::~World() = default;

Node& World::Add(std::string name) { return Add(std::move(name), RandomId()); }

Node& World::Add(std::string name, NodeId id) {
  nodes_.push_back(std::make_unique<Node>(*this, std::move(name), id));
  return *nodes_.back();
}

void World::Pass(Duration span) {
  const Time limit = In(span);
  for (Time now = Now(); now < limit; now = Now()) ground_->Pass({}, limit - now);
}

bool World::Until(const std::function<bool()>& done, Duration timeout) {
  const Time limit = In(timeout);
  const Time real_limit = BootClock::now() + timeout;  // what another thread does takes real time
  while (!done()) {
    if (Now() > limit && BootClock::now() > real_limit) return false;
    ground_->Pass({}, milliseconds(1));
  }
  return true;
}

// --- Pair

Pair::Pair(World& world, const BufferOptions& options)
    : here(world.Add("here")),
      there(world.Add("there")),
      local(here, options),
      remote(there, options),
      peer(here.Open(there)),
      flight(world, here) {
  MOONPOOL_CHECK(peer != nullptr);
}

Range Pair::Whole(Op op, Time deadline) const {
  return {op, local.address(), remote.address(), remote.key(), remote.size(), deadline};
}

}  // namespace moonpool::transport::conformance
