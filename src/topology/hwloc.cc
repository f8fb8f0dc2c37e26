#include "topology/hwloc.h"

#include <dlfcn.h>
#include <hwloc.h>

#include <memory>

#include "base/str.h"

namespace moonpool::topology {
namespace {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// The functions by name; the types are the header's.
struct Functions {
  decltype(&hwloc_get_api_version) api_version = nullptr;
  decltype(&hwloc_topology_init) init = nullptr;
  decltype(&hwloc_topology_set_io_types_filter) filter = nullptr;
  decltype(&hwloc_topology_load) load = nullptr;
  decltype(&hwloc_topology_destroy) destroy = nullptr;
  decltype(&hwloc_get_nbobjs_by_depth) count = nullptr;
  decltype(&hwloc_get_obj_by_depth) at = nullptr;
  decltype(&hwloc_bitmap_first) first = nullptr;
};

template <typename F>
bool Bind(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool BindAll(void* library, Functions& f) {
  return Bind(library, "hwloc_get_api_version", f.api_version) &&
         Bind(library, "hwloc_topology_init", f.init) &&
         Bind(library, "hwloc_topology_set_io_types_filter", f.filter) &&
         Bind(library, "hwloc_topology_load", f.load) &&
         Bind(library, "hwloc_topology_destroy", f.destroy) &&
         Bind(library, "hwloc_get_nbobjs_by_depth", f.count) &&
         Bind(library, "hwloc_get_obj_by_depth", f.at) &&
         Bind(library, "hwloc_bitmap_first", f.first);
}

// The node of the nearest ancestor that has processors, -1 when several share the device.
int NodeOf(const Functions& f, hwloc_obj_t device) {
  hwloc_obj_t up = device;
  while (up != nullptr && up->nodeset == nullptr) up = up->parent;
  if (up == nullptr || up->parent == nullptr) return -1;  // the whole machine: no information
  return f.first(up->nodeset);
}

}  // namespace

HwlocView AskHwloc() {
  HwlocView view;
  const Library library(dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    view.missing = "libhwloc.so.15 is not installed";
    return view;
  }
  Functions f;
  if (!BindAll(library.get(), f) || f.api_version() >> 16 != HWLOC_API_VERSION >> 16) {
    view.missing = "libhwloc.so.15 has another interface";
    return view;
  }
  hwloc_topology_t topology = nullptr;
  if (f.init(&topology) != 0) {
    view.missing = "libhwloc.so.15 does not initialize";
    return view;
  }
  f.filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (f.load(topology) == 0) {
    view.version = Str(f.api_version() >> 16, ".", (f.api_version() >> 8) & 0xff);
    const int devices = static_cast<int>(f.count(topology, HWLOC_TYPE_DEPTH_OS_DEVICE));
    for (int i = 0; i < devices; ++i) {
      hwloc_obj_t device = f.at(topology, HWLOC_TYPE_DEPTH_OS_DEVICE, static_cast<unsigned>(i));
      if (device == nullptr || device->name == nullptr) continue;
      if (const int node = NodeOf(f, device); node >= 0) view.node_of[device->name] = node;
    }
  } else {
    view.missing = "libhwloc.so.15 cannot read this machine";
  }
  f.destroy(topology);
  return view;
}

}  // namespace moonpool::topology
