#pragma once

// Serving: the owner's end of one connection after its handshake: receives the payloads of writes
// straight into registered memory and sends what reads ask for straight out of it.
//
// A region is entered around each step (one system call and the checksum of what it moved) and
// never held while waiting. Steps that store are fenced by the deadline of their message. When a
// message may not go on (region gone, deadline passed, memory unmapped) what is left of it goes
// into a sink, or is padded with zeros, and the answer carries the code; the connection lives on.
// What breaks the format ends the connection.
//
// Bounds: one message being received (a table of kTableBytesMax), waiting reads of
// kWaitingEntriesMax table entries (each read counts kRequestEntries more), answers of kAnswersMax bytes; beyond, it stops receiving until
// it has sent.
//
// Threads: thread-bound, to an event thread's.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "transport/tcp/gather.h"
#include "transport/tcp/shared.h"
#include "transport/tcp/wire.h"

namespace moonpool::tcp {

// What the connections of one event thread borrow from it.
struct ServingContext {
  Shared& shared;
  int epoll = -1;
  std::vector<std::byte> sink;
  std::vector<std::byte> zeros;
  std::vector<RegionInfo> infos;                // scratch of a check
  std::vector<std::unique_ptr<Request>> spare;  // read requests to use again

  explicit ServingContext(Shared& shared_in) : shared(shared_in) {}
};

class Serving {
 public:
  static constexpr size_t kWaitingEntriesMax = 16384;  // of kEntryBytes: 256 KiB
  // What a waiting read costs besides its table (the request itself, its two allocations, its place).
  static constexpr size_t kRequestEntries = 12;
  static constexpr size_t kAnswersMax = 64 << 10;

  Serving(ServingContext& context, UniqueFd fd, uint64_t id);
  ~Serving();
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  uint64_t id() const { return id_; }
  // Watches the socket; the events come with this object's address. False: the kernel refused.
  bool Start();
  // Receives and sends within a budget. False: the connection is over.
  bool OnEvent(bool readable, bool writable);
  // Whether the last OnEvent with `readable` received anything.
  bool received() const { return turn_bytes_ > 0; }

 private:
  enum class Stage { kHead, kTable, kPayload };

  bool Receive();
  bool ReceiveHead(bool* drained);
  bool ReceiveTable(bool* drained);
  bool ReceivePayload(bool* drained);
  bool OnHead();
  void OnRequest();
  void Discard(Code code);
  bool FinishWrite();
  bool Malformed();
  bool Full() const;

  bool Send();
  bool BuildBatch();
  void BeginRead();
  long SendStep(const Gather::Step& step, bool more);
  void Pad(Code code);
  void BatchDone();
  void Answer(transport::Op op, uint64_t sequence, Code code);
  void Arm();

  Code Check(const Request& request, Rights need);
  Code Enter(const Request& request, size_t first, size_t end, Rights need);
  void Leave(const Request& request);

  ServingContext& context_;
  UniqueFd fd_;
  const uint64_t id_;
  uint32_t armed_ = 0;  // the events that epoll watches
  bool blocked_ = false;
  size_t turn_bytes_ = 0;  // received by the last OnEvent that was told to

  Stage stage_ = Stage::kHead;
  std::array<std::byte, kHeadBytes> head_{};
  size_t head_bytes_ = 0;
  std::vector<std::byte> table_;
  size_t table_bytes_ = 0;
  Request request_;  // the one being received
  Gather in_;        // its pieces, its trailer, the next head
  Code code_ = Code::kOk;
  uint32_t crc_in_ = 0;
  std::array<std::byte, kTrailerBytes> trailer_in_{};

  std::deque<std::unique_ptr<Request>> waiting_;  // reads
  size_t waiting_entries_ = 0;
  std::vector<std::byte> answers_;
  std::vector<std::byte> answers_sending_;
  Gather out_;
  bool payload_ = false;  // out_ has the payload of waiting_.front(), in [first, end)
  size_t payload_first_ = 0;
  size_t payload_end_ = 0;
  Code payload_code_ = Code::kOk;
  uint32_t crc_out_ = 0;
  std::array<std::byte, kReplyBytes> reply_out_{};
  std::array<std::byte, kTrailerBytes> trailer_out_{};  // of the payload in out_
  bool trailer_due_ = false;
  std::array<std::byte, kTrailerBytes> trailer_before_{};  // of the payload before it

  std::vector<uint32_t> entered_;  // indices of keys
  std::vector<uint32_t> stamps_;   // by key: the step that entered it
  uint32_t stamp_ = 0;
};

}  // namespace moonpool::tcp
