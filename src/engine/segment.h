#pragma once

// SegmentState: an opened peer. It knows the current Incarnation of the process (who answers at the address now, and
// the path to it) and its regions as last heard, and keeps the groups that wait until the peer is reachable again.
//
// Threads: fields say who guards them. Lock order: none of these mutexes is held while another is taken.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/descriptor.h"
#include "engine/options.h"
#include "engine/plan.h"

namespace moonpool::engine {

struct Batch;
struct Incarnation;

// One transport's way to an incarnation. The address of a Path names it while its incarnation lives.
struct Path {
  const size_t transport = 0;  // index into the engine's transports
  const std::string transport_name;
  const std::unique_ptr<transport::Peer> peer;
  std::atomic<uint32_t> failures{0};  // in a row; a success clears it
  std::atomic<bool> unusable{
      false};  // it cannot carry what was asked (kUnsupported): not chosen again
};

// What was found out about one transport towards one incarnation.
struct PathSlot {
  std::unique_ptr<Path> path;  // null: not opened
  std::string reason;          // why it is not opened or not used
  Time paused_until{};         // do not try before
  Duration pause{0};           // last one; doubles
};

// One life of a peer's process. Shared by its segment and the batches under way with it; workers hold it until their
// lanes have detached.
struct Incarnation {
  // Constant.
  transport::NodeId id;
  std::string name;  // for messages
  std::string host;  // numeric, where it answered
  std::vector<TransportAddress> transports;

  std::atomic<Path*> chosen{
      nullptr};  // owned by `paths`, which only grows while the incarnation lives
  std::atomic<bool> retired{false};  // replaced; nothing is posted to it any more

  Mutex mutex;
  std::vector<PathSlot> paths MOONPOOL_GUARDED_BY(mutex);  // by transport index
};

struct WaitingGroup {
  std::shared_ptr<Batch> batch;
  size_t group = 0;
};

struct SegmentState {
  // Constant after Open.
  SegmentHandle handle = 0;
  std::string name;

  Mutex mutex;
  std::shared_ptr<Incarnation> incarnation
      MOONPOOL_GUARDED_BY(mutex);  // null until first reached, or when lost
  std::shared_ptr<const RegionView> view MOONPOOL_GUARDED_BY(mutex);
  std::string address MOONPOOL_GUARDED_BY(mutex);  // as last resolved
  std::string reason MOONPOOL_GUARDED_BY(mutex);   // of the choice of transport
  std::deque<WaitingGroup> waiting MOONPOOL_GUARDED_BY(mutex);
  bool repairing MOONPOOL_GUARDED_BY(mutex) = false;  // a task is under way
  bool closed MOONPOOL_GUARDED_BY(mutex) = false;
};

}  // namespace moonpool::engine
