// The extension module moonpool._native. moonpool/_engine.py is what users see; here is what needs
// C++: descriptors, waiting, and the life of memory.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/crc32c.h"
#include "base/fence.h"
#include "base/str.h"
#include "python/batch.h"
#include "python/descriptors.h"
#include "python/engine_owner.h"
#include "python/errors.h"
#include "python/instance.h"
#include "python/region.h"
#include "python/waiting.h"
#include "topology/probe.h"
#include "topology/topology.h"

namespace nb = nanobind;

namespace moonpool::python {
namespace {

// The Python object moonpool._native.Engine.
class Engine {
 public:
  explicit Engine(const EngineSettings& settings)
      : owner_(std::make_shared<EngineOwner>(settings)) {}

  EngineOwner& owner() { return *owner_; }
  const std::shared_ptr<EngineOwner>& shared() const { return owner_; }

  // Runs a call that can wait and gives back its value; raises its error, blaming `peer`.
  template <typename T>
  T Call(std::function<Result<T>(engine::Engine&)> call, const std::string& peer) {
    // On the heap: a call that Ctrl-C abandons still writes its result.
    auto result = std::make_shared<std::optional<Result<T>>>();
    owner_->Run([result, call = std::move(call)](engine::Engine& engine) {
      result->emplace(call(engine));
    });
    if (!(*result)->ok()) Raise((*result)->status(), {peer, "", transport::Phase::kNone});
    return std::move(**result).value();
  }

  // None: the engine's timeout. Never 0, which the engine takes for "none given".
  Duration Timeout(const std::optional<double>& seconds) {
    return seconds.has_value() ? std::max(Seconds(seconds, "timeout"), Duration(1))
                               : owner_->timeout();
  }

 private:
  const std::shared_ptr<EngineOwner> owner_;
};

LogLevel ParseLogLevel(const std::string& text) {
  const std::pair<const char*, LogLevel> levels[] = {{"debug", LogLevel::kDebug},
                                                     {"info", LogLevel::kInfo},
                                                     {"warning", LogLevel::kWarning},
                                                     {"error", LogLevel::kError},
                                                     {"off", LogLevel::kOff}};
  for (const auto& [name, level] : levels)
    if (text == name) return level;
  RaiseInvalid(Str("log_level: must be debug, info, warning, error or off, not \"", text, "\""));
}

// `settings` holds every option by its name in engine::Options; times in seconds.
EngineSettings ParseSettings(const nb::dict& settings) {
  EngineSettings out;
  engine::Options& options = out.options;
  for (const auto& [key, value] : settings) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "listen")
      options.listen = nb::cast<std::string>(value);
    else if (name == "advertise_host")
      options.advertise_host = nb::cast<std::string>(value);
    else if (name == "name")
      options.name = nb::cast<std::string>(value);
    else if (name == "transports")
      options.transports = nb::cast<std::vector<std::string>>(value);
    else if (name == "workers")
      options.workers = nb::cast<int>(value);
    else if (name == "serving_threads")
      options.serving_threads = nb::cast<int>(value);
    else if (name == "checksum")
      options.checksum = nb::cast<bool>(value);
    else if (name == "spin_max")
      options.spin_max = Seconds(nb::cast<double>(value), "spin_us");
    else if (name == "timeout")
      options.timeout = Seconds(nb::cast<double>(value), "timeout");
    else if (name == "retry_window")
      options.retry_window = Seconds(nb::cast<double>(value), "retry_window");
    else if (name == "lease")
      options.lease = Seconds(nb::cast<double>(value), "lease");
    else if (name == "batches_max")
      options.batches_max = nb::cast<uint32_t>(value);
    else if (name == "notifications_max")
      options.notifications_max = nb::cast<uint32_t>(value);
    else if (name == "registry")
      out.registry = nb::cast<std::string>(value);
    else if (name == "log_level")
      out.log_level = ParseLogLevel(nb::cast<std::string>(value));
    else
      RaiseInvalid(Str("unknown option \"", name, "\""));
  }
  return out;
}

// --- Descriptions -----

nb::object OptionalText(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.c_str(), text.size()));
}

nb::dict Describe(const engine::SegmentInfo& info) {
  nb::dict out;
  out["name"] = info.name;
  out["address"] = info.address;
  out["transport"] = OptionalText(info.transport);
  out["reason"] = info.reason;
  return out;
}

nb::dict Describe(const engine::TransportInfo& info) {
  nb::dict out;
  out["name"] = info.name;
  out["usable"] = info.usable;
  out["reason"] = info.reason;
  nb::dict metrics;
  metrics["bytes_sent"] = info.metrics.bytes_sent;
  metrics["bytes_received"] = info.metrics.bytes_received;
  metrics["slices_served"] = info.metrics.slices_served;
  metrics["requests_refused"] = info.metrics.requests_refused;
  metrics["connections_open"] = info.metrics.connections_open;
  metrics["connections_rejected"] = info.metrics.connections_rejected;
  metrics["checksum_errors"] = info.metrics.checksum_errors;
  out["metrics"] = metrics;
  return out;
}

nb::dict Describe(const engine::Info& info) {
  nb::dict out;
  out["name"] = info.name;
  out["address"] = info.address;
  out["node"] = info.id.node;
  out["incarnation"] = info.id.incarnation;
  out["fence_exact"] = info.fence_exact;
  nb::list transports, segments;
  for (const auto& transport : info.transports) transports.append(Describe(transport));
  for (const auto& segment : info.segments) segments.append(Describe(segment));
  out["transports"] = transports;
  out["segments"] = segments;
  out["regions"] = info.regions;
  out["batches_live"] = info.batches_live;
  out["batches_completed"] = info.batches_completed;
  out["batches_failed"] = info.batches_failed;
  out["bytes_read"] = info.bytes_read;
  out["bytes_written"] = info.bytes_written;
  out["retries"] = info.retries;
  out["notifications_dropped"] = info.notifications_dropped;
  return out;
}

// --- Batches -----

// The C++ side of moonpool.Transfer, and of the arguments of write and read.
struct Request {
  engine::SegmentHandle segment;
  transport::Op op;
  Descriptors local;
  Descriptors remote;
  Descriptors lengths;

  engine::Group Group() const { return {segment, op, local.span(), remote.span(), lengths.span()}; }
};

transport::Op ParseOp(int op) { return op == 0 ? transport::Op::kRead : transport::Op::kWrite; }

void CheckWritable(EngineOwner& owner, const engine::Group& group) {
  if (group.op != transport::Op::kRead || !owner.has_read_only()) return;
  const size_t count = std::min(group.local.size(), group.lengths.size());
  for (size_t i = 0; i < count; ++i)
    if (owner.IsReadOnly(group.local[i], group.lengths[i]))
      RaiseInvalid(Str("local[", i, "]: a read would write into read-only memory"));
}

nb::object Submit(Engine& self, std::span<const engine::Group> groups, const SubmitOptions& options,
                  nb::object keeper) {
  EngineOwner& owner = self.owner();
  engine::Engine& engine = owner.engine();
  engine::BatchRequest request;
  request.groups = groups;
  if (options.timeout.has_value())
    request.timeout = std::max(Seconds(options.timeout, "timeout"), Duration(1));
  request.priority = options.priority;
  request.notify = options.notify.has_value();
  if (request.notify) request.payload = *options.notify;
  request.to_queue = options.to_queue;
  request.wait_follows = options.wait_follows;
  for (const engine::Group& group : groups) CheckWritable(owner, group);
  owner.FreeWhatCan();
  Result<engine::BatchHandle> handle = Status(Code::kInternal, "not submitted");
  {
    const nb::gil_scoped_release released;
    handle = engine.Submit(request);
  }
  RaiseIfError(handle.status());
  return MakeInstance<Batch>(self.shared(), Batch::Origin{*handle, options.to_queue},
                             std::move(keeper));
}

SubmitOptions ParseSubmitOptions(const std::optional<double>& timeout, const std::string& priority,
                                 nb::handle notify) {
  SubmitOptions options;
  options.timeout = timeout;
  options.priority = ParsePriority(priority);
  if (!notify.is_none()) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(notify.ptr(), &data, &size) != 0) throw nb::python_error();
    options.notify.emplace(data, static_cast<size_t>(size));
  }
  return options;
}

std::string BytesOf(const nb::bytes& payload) { return {payload.c_str(), payload.size()}; }

// --- Regions -----

// A wrong address is better found now than when a peer asks for it. The first and the last page are
// looked at: a look at all pages of a large region would take long.
void CheckMapped(uint64_t address, uint64_t size) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (size == 0 || address + (size - 1) < address) return;  // the engine says what is wrong
  for (const uint64_t byte : {address, address + (size - 1)}) {
    unsigned char resident = 0;
    if (::mincore(reinterpret_cast<void*>(byte & ~(page - 1)), 1, &resident) != 0 &&
        errno == ENOMEM)
      RaiseInvalid(Str("address: no memory is mapped at 0x", std::hex, byte));
  }
}

nb::object Register(Engine& self, nb::handle memory, const std::optional<uint64_t>& size,
                    const std::string& rights) {
  const Rights allowed = ParseRights(rights);
  BorrowedMemory borrowed;
  // numpy's scalars offer their bytes as a buffer, too, and arrays offer __index__: only numbers have no
  // length.
  if (PyIndex_Check(memory.ptr()) && !nb::hasattr(memory, "__len__")) {
    if (!size.has_value()) RaiseInvalid("size: must be given with an address");
    const Descriptors address(memory, "address");
    borrowed.address = address.span()[0];
    borrowed.size = *size;
    CheckMapped(borrowed.address, borrowed.size);
  } else {
    borrowed = Borrow(memory, allowed);
    if (size.has_value() && *size != borrowed.size) {
      if (*size > borrowed.size || *size == 0)
        RaiseInvalid(Str("size: must be in 1 .. ", borrowed.size, ", the size of the memory"));
      borrowed.size = *size;
    }
  }
  engine::Engine& engine = self.owner().engine();
  Result<RegionInfo> info = Status(Code::kInternal, "not registered");
  {
    const nb::gil_scoped_release released;
    info = engine.Register(reinterpret_cast<void*>(borrowed.address), borrowed.size, allowed);
  }
  RaiseIfError(info.status());
  if (borrowed.read_only) self.owner().AddReadOnly(borrowed.address, borrowed.size);
  const Region::Memory description{borrowed.address, borrowed.size, allowed, false,
                                   borrowed.read_only};
  return MakeInstance<Region>(self.shared(), description, std::move(borrowed.keeps));
}

nb::object Allocate(Engine& self, uint64_t size, const std::string& rights, bool huge_pages) {
  const Rights allowed = ParseRights(rights);
  self.owner().FreeWhatCan();
  const auto info = self.Call<RegionInfo>(
      [=](engine::Engine& engine) { return engine.Allocate(size, allowed, huge_pages); }, "");
  const Region::Memory description{info.address, info.size, info.rights, true, false};
  return MakeInstance<Region>(self.shared(), description, nb::object());
}

nb::list RegisterMany(Engine& self, const Descriptors& addresses, const Descriptors& sizes,
                      Rights rights) {
  if (addresses.span().size() != sizes.span().size())
    RaiseInvalid(
        Str("addresses has ", addresses.span().size(), " items, sizes ", sizes.span().size()));
  engine::Engine& engine = self.owner().engine();
  const size_t count = addresses.span().size();
  for (size_t i = 0; i < count; ++i) CheckMapped(addresses.span()[i], sizes.span()[i]);
  Status status;
  size_t failed = 0;
  {
    const nb::gil_scoped_release released;
    size_t done = 0;
    for (; done < count && status.ok(); ++done)
      status =
          engine
              .Register(reinterpret_cast<void*>(addresses.span()[done]), sizes.span()[done], rights)
              .status();
    if (!status.ok()) {
      failed = done - 1;
      for (size_t i = 0; i < failed; ++i)
        (void)engine.Deregister(reinterpret_cast<void*>(addresses.span()[i]),
                                std::chrono::seconds(1));
    }
  }
  if (!status.ok()) Raise(status.WithContext(Str("item ", failed)));
  nb::list regions;
  for (size_t i = 0; i < count; ++i) {
    const Region::Memory description{addresses.span()[i], sizes.span()[i], rights, false, false};
    regions.append(MakeInstance<Region>(self.shared(), description, nb::object()));
  }
  return regions;
}

void DeregisterMany(Engine& self, const nb::sequence& regions,
                    const std::optional<double>& timeout) {
  engine::Engine& engine = self.owner().engine();
  std::vector<Region*> open;
  for (nb::handle item : regions) {
    auto& region = nb::cast<Region&>(item);
    region.CheckClosable();
    if (region.open()) open.push_back(&region);
  }
  const Time deadline = After(BootClock::now(), self.Timeout(timeout));
  Status first;
  std::vector<bool> closed(open.size());
  {
    // The list holds the objects while the GIL is away; nobody else closes what is not open.
    const nb::gil_scoped_release released;
    for (size_t i = 0; i < open.size(); ++i) {
      const Duration left = std::max(deadline - BootClock::now(), Duration(1));
      const Status status = open[i]->CloseNow(engine, left);
      closed[i] = status.ok() || status.code() == Code::kNotFound;
      if (first.ok() && !closed[i]) first = status;
    }
  }
  for (size_t i = 0; i < open.size(); ++i)
    if (closed[i]) open[i]->MarkClosed();
  RaiseIfError(first);
}

// --- Binding -----

void BindMemory(nb::class_<Engine>& type) {
  type.def("register", &Register, nb::arg("memory"), nb::arg("size").none(), nb::arg("rights"),
           nb::sig("def register(self, memory: object, size: int | None, rights: str) -> Region"))
      .def("allocate", &Allocate, nb::arg("size"), nb::arg("rights"), nb::arg("huge_pages"),
           nb::sig("def allocate(self, size: int, rights: str, huge_pages: bool) -> Region"))
      .def(
          "register_many",
          [](Engine& self, nb::handle addresses, nb::handle sizes, const std::string& rights) {
            return RegisterMany(self, Descriptors(addresses, "addresses"),
                                Descriptors(sizes, "sizes"), ParseRights(rights));
          },
          nb::arg("addresses"), nb::arg("sizes"), nb::arg("rights"),
          nb::sig("def register_many(self, addresses: object, sizes: object, rights: str) -> "
                  "list[Region]"))
      .def("deregister_many", &DeregisterMany, nb::arg("regions"), nb::arg("timeout").none(),
           nb::sig("def deregister_many(self, regions: collections.abc.Sequence[Region], timeout: "
                   "float | None) "
                   "-> None"));
}

void BindSegments(nb::class_<Engine>& type) {
  type.def("open",
           [](Engine& self, const std::string& name, const std::optional<double>& timeout) {
             const Duration limit = self.Timeout(timeout);
             return self.Call<engine::SegmentHandle>(
                 [=](engine::Engine& engine) { return engine.Open(name, limit); }, name);
           })
      .def("close_segment",
           [](Engine& self, engine::SegmentHandle segment) {
             if (!self.owner().closed()) RaiseIfError(self.owner().engine().CloseSegment(segment));
           })
      .def(
          "segment",
          [](Engine& self, engine::SegmentHandle segment, bool refresh,
             const std::optional<double>& timeout, const std::string& name) {
            const Duration limit = self.Timeout(timeout);
            const auto info = self.Call<engine::SegmentInfo>(
                [=](engine::Engine& engine) { return engine.Segment(segment, refresh, limit); },
                name);
            nb::dict out = Describe(info);
            nb::list regions;
            for (const RegionInfo& region : info.regions)
              regions.append(
                  nb::make_tuple(region.address, region.size, RightsText(region.rights)));
            out["regions"] = regions;
            return out;
          },
          nb::sig("def segment(self, segment: int, refresh: bool, timeout: float | None, name: "
                  "str) -> dict[str, typing.Any]"))
      .def("notify",
           [](Engine& self, engine::SegmentHandle segment, const nb::bytes& payload,
              const std::optional<double>& timeout, const std::string& name) {
             const Duration limit = self.Timeout(timeout);
             self.Call<bool>(
                 [=, payload = BytesOf(payload)](engine::Engine& engine) -> Result<bool> {
                   MOONPOOL_RETURN_IF_ERROR(engine.Notify(segment, payload, limit));
                   return true;
                 },
                 name);
           })
      .def(
          "notifications",
          [](Engine& self, size_t max, const std::optional<double>& timeout) {
            engine::Engine& engine = self.owner().engine();
            std::vector<engine::Notification> taken;
            WaitInSlices(Seconds(timeout, "timeout"), [&](Duration slice) {
              taken = engine.TakeNotifications(max, slice);
              return !taken.empty() || self.owner().closed();
            });
            nb::list out;
            for (const auto& notification : taken)
              out.append(nb::make_tuple(
                  nb::steal(PyUnicode_DecodeUTF8(
                      notification.sender.data(),
                      static_cast<Py_ssize_t>(notification.sender.size()), "replace")),
                  nb::bytes(notification.payload.data(), notification.payload.size())));
            return out;
          },
          nb::sig("def notifications(self, max: int, timeout: float | None) -> list[tuple[str, "
                  "bytes]]"));
}

void BindDescriptors(nb::class_<Engine>& type) {
  // Reads descriptors and does nothing with them: what tests/python/costs.py measures.
  type.def("count_descriptors", [](Engine&, nb::handle local, nb::handle remote,
                                   nb::handle lengths) {
    return Descriptors(local, "local").span().size() + Descriptors(remote, "remote").span().size() +
           Descriptors(lengths, "lengths").span().size();
  });
  // The bytes of a transfer and how many of its lengths are 0, without taking each number out as an object.
  type.def(
      "measure",
      [](Engine&, nb::handle lengths) {
        const Descriptors read(lengths, "lengths");
        uint64_t bytes = 0;
        size_t zeros = 0;
        for (const uint64_t length : read.span()) {
          bytes = length > UINT64_MAX - bytes ? UINT64_MAX : bytes + length;
          zeros += length == 0 ? 1 : 0;
        }
        return std::pair(bytes, zeros);
      },
      nb::arg("lengths"), nb::sig("def measure(self, lengths: object) -> tuple[int, int]"));
}

void BindBatches(nb::class_<Engine>& type) {
  type.def(
          "transfer",
          [](Engine& self, nb::object keeper, int op, engine::SegmentHandle segment,
             nb::handle local, nb::handle remote, nb::handle lengths,
             const std::optional<double>& timeout, const std::string& priority, nb::handle notify,
             bool to_queue, bool wait_follows) {
            SubmitOptions options = ParseSubmitOptions(timeout, priority, notify);
            options.to_queue = to_queue;
            options.wait_follows = wait_follows;
            const Request request{segment, ParseOp(op), Descriptors(local, "local"),
                                  Descriptors(remote, "remote"), Descriptors(lengths, "lengths")};
            const engine::Group group = request.Group();
            return Submit(self, {&group, 1}, options, std::move(keeper));
          },
          nb::arg("keeper"), nb::arg("op"), nb::arg("segment"), nb::arg("local"), nb::arg("remote"),
          nb::arg("lengths"), nb::arg("timeout").none(), nb::arg("priority"),
          nb::arg("notify").none(), nb::arg("to_queue"), nb::arg("wait_follows"),
          nb::sig(
              "def transfer(self, keeper: object, op: int, segment: int, local: object, remote: "
              "object, lengths: object, timeout: float | None, priority: str, notify: bytes | "
              "None, to_queue: bool, wait_follows: bool) -> Batch"))
      .def(
          "submit",
          [](Engine& self, nb::object keeper, const nb::list& transfers,
             const std::optional<double>& timeout, const std::string& priority, nb::handle notify,
             bool to_queue) {
            SubmitOptions options = ParseSubmitOptions(timeout, priority, notify);
            options.to_queue = to_queue;
            // Descriptors cannot move: one allocation each.
            std::vector<std::unique_ptr<Request>> requests;
            std::vector<engine::Group> groups;
            for (nb::handle item : transfers) {
              const auto fields = nb::cast<nb::tuple>(item);
              requests.push_back(std::unique_ptr<Request>(new Request{
                  nb::cast<engine::SegmentHandle>(fields[0]), ParseOp(nb::cast<int>(fields[1])),
                  Descriptors(fields[2], "local"), Descriptors(fields[3], "remote"),
                  Descriptors(fields[4], "lengths")}));
              groups.push_back(requests.back()->Group());
            }
            return Submit(self, groups, options, std::move(keeper));
          },
          nb::arg("keeper"), nb::arg("transfers"), nb::arg("timeout").none(), nb::arg("priority"),
          nb::arg("notify").none(), nb::arg("to_queue"),
          nb::sig("def submit(self, keeper: object, transfers: list[tuple[int, int, object, "
                  "object, object]], timeout: float | None, priority: str, notify: bytes | None, "
                  "to_queue: bool) -> Batch"))
      .def(
          "next_completed",
          [](Engine& self, size_t max, const std::optional<double>& timeout) {
            engine::Engine& engine = self.owner().engine();
            std::vector<engine::BatchHandle> handles;
            WaitInSlices(Seconds(timeout, "timeout"), [&](Duration slice) {
              handles = engine.NextCompleted(max, slice);
              return !handles.empty() || self.owner().closed();
            });
            return handles;
          },
          nb::arg("max"), nb::arg("timeout").none());
}

void BindEngine(nb::module_& module) {
  nb::class_<Engine> type(module, "Engine", nb::is_weak_referenceable());
  type.def(
          "__init__",
          [](Engine* self, const nb::dict& settings) {
            new (self) Engine(ParseSettings(settings));
          },
          nb::arg("settings"),
          nb::sig("def __init__(self, settings: dict[str, typing.Any]) -> None"))
      .def("name", [](Engine& self) { return self.owner().engine().name(); })
      .def("address", [](Engine& self) { return self.owner().engine().address(); })
      .def(
          "info",
          [](Engine& self) {
            engine::Engine& engine = self.owner().engine();
            engine::Info info;
            {
              const nb::gil_scoped_release released;
              info = engine.Describe();
            }
            return Describe(info);
          },
          nb::sig("def info(self) -> dict[str, typing.Any]"))
      .def("event_fd", [](Engine& self) { return self.owner().engine().event_fd(); })
      .def("closed", [](Engine& self) { return self.owner().closed(); })
      .def("here", [](Engine& self) { return self.owner().here(); })
      .def("close", [](Engine& self) { self.owner().Close(); });
  BindMemory(type);
  BindSegments(type);
  BindDescriptors(type);
  BindBatches(type);
}

// The affinity matrix of this machine's RDMA devices, as Mooncake prints it.
std::string LocalTopology() {
  Result<topology::Topology> found = Status(Code::kInternal, "not probed");
  {
    const nb::gil_scoped_release released;
    found = topology::Probe();
  }
  RaiseIfError(found.status());
  return topology::ToMooncakeJson(topology::AffinityMatrix(*found, topology::NicKind::kRdma));
}

}  // namespace
}  // namespace moonpool::python

NB_MODULE(_native, module) {
  namespace python = moonpool::python;
  // At exit the interpreter may leave objects behind; that is no news to a user.
  nb::set_leak_warnings(false);
  module.doc() = "What moonpool needs from C++. Use the package moonpool instead.";
  python::BindRegion(module);
  python::BindBatch(module);
  python::BindEngine(module);
  module.def("crc32c_implementation", [] { return moonpool::Crc32cImplementation(); });
  module.def("local_topology", &python::LocalTopology);
  module.def("fence_is_exact", &moonpool::FenceIsExact);
}
