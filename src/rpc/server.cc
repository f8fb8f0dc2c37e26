#include "rpc/server.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <utility>

#include "base/str.h"
#include "net/stream_server.h"
#include "net/work_pool.h"

namespace moonpool::rpc {
namespace {

// Requests of one connection that are being worked on; then nothing more is read from it. As many
// as the queue holds would let one peer fill it: a quarter.
constexpr size_t kQueueShareOfPeer = 4;

// How long Close waits for handlers; with the rest it stays under 1 s.
constexpr Duration kClosePatience = std::chrono::milliseconds(700);

}  // namespace

struct Server::State {
  State(const Clock& clock_in, Logger* log_in, ServerOptions options_in)
      : clock(clock_in), log(log_in), options(std::move(options_in)) {}

  const Clock& clock;
  Logger* const log;
  const ServerOptions options;
  std::map<std::string, Handler, std::less<>> handlers;  // constant after Start
  bool started = false;                                  // of the thread that sets up
  std::atomic<uint64_t> requests{0};                     // counters: relaxed, pair with nothing
  std::atomic<uint64_t> requests_refused{0};
  std::unique_ptr<net::StreamServer> stream;
  std::unique_ptr<net::WorkPool> work;  // its jobs use all of the above

  void Reply(uint64_t connection, const Frame& request, const Result<std::string>& result);
  void Run(const Handler& handler, uint64_t connection, const Frame& request,
           const CallContext& context);
};

namespace {

// The protocol of one connection: a hello, then requests.
class RpcSession final : public net::Session {
 public:
  // Sees to it that one reply is sent, at once or later.
  using OnRequest = std::function<void(const Frame&)>;

  RpcSession(const ServerOptions& options, std::function<void(std::string)> send,
             OnRequest on_request)
      : options_(options),
        in_flight_max_(std::max<size_t>(1, options.queue_max / kQueueShareOfPeer)),
        send_(std::move(send)),
        on_request_(std::move(on_request)) {}

  Result<size_t> OnBytes(std::string_view bytes) override {
    size_t consumed = 0;
    while (wants_bytes()) {
      const std::string_view rest = bytes.substr(consumed);
      partial_ = false;
      if (rest.empty()) break;
      MOONPOOL_ASSIGN_OR_RETURN(const std::optional<Frame> frame,
                                Decode(rest, options_.frame_bytes_max));
      if (!frame) {
        partial_ = true;
        break;
      }
      consumed += frame->size();
      if (version_ == 0) {
        MOONPOOL_RETURN_IF_ERROR(OnHello(*frame));
        continue;
      }
      if (frame->kind != Kind::kRequest || frame->version != version_) {
        return Status(Code::kCorrupt, "a frame that is not a request of the agreed version");
      }
      ++in_flight_;
      on_request_(*frame);
    }
    return consumed;
  }

  void OnReply() override {
    MOONPOOL_CHECK(in_flight_ > 0);
    --in_flight_;
  }

  net::SessionPhase phase() const override {
    if (version_ == 0) return net::SessionPhase::kHandshake;
    if (partial_ && wants_bytes()) return net::SessionPhase::kReceiving;
    return in_flight_ > 0 ? net::SessionPhase::kBusy : net::SessionPhase::kIdle;
  }
  bool wants_bytes() const override { return in_flight_ < in_flight_max_; }
  bool StaysAfterEof() const override { return false; }

 private:
  Status OnHello(const Frame& frame) {
    if (frame.kind != Kind::kHello) return Status(Code::kCorrupt, "the first frame is no hello");
    MOONPOOL_ASSIGN_OR_RETURN(const VersionRange theirs, DecodeRange(frame.payload));
    const auto chosen = Negotiate(options_.versions, theirs);
    if (!chosen.ok()) {
      send_(EncodeRefusal(options_.versions));
      return chosen.status();
    }
    version_ = *chosen;
    send_(EncodeWelcome(version_));
    return Status::Ok();
  }

  const ServerOptions& options_;
  const size_t in_flight_max_;
  const std::function<void(std::string)> send_;
  const OnRequest on_request_;
  uint8_t version_ = 0;  // 0: before the hello
  size_t in_flight_ = 0;
  bool partial_ = false;  // a frame has begun and is not all there
};

}  // namespace

void Server::State::Reply(uint64_t connection, const Frame& request,
                          const Result<std::string>& result) {
  Frame reply{.kind = Kind::kReply,
              .version = request.version,
              .id = request.id,
              .method = {},
              .payload = {}};
  reply.code = result.code();
  reply.payload = result.ok() ? std::string_view(*result) : result.status().message();
  if (reply.payload.size() > options.frame_bytes_max) {
    reply.code = Code::kExhausted;
    reply.payload = "the reply is larger than this server's bound on frames";
  }
  stream->Send(connection, {.bytes = Encode(reply), .reply = true});
}

void Server::State::Run(const Handler& handler, uint64_t connection, const Frame& request,
                        const CallContext& context) {
  if (context.cancelled()) {
    return Reply(connection, request, Status(Code::kCancelled, "the caller is gone"));
  }
  if (clock.Now() >= context.deadline) {
    requests_refused.fetch_add(1, std::memory_order_relaxed);
    return Reply(connection, request,
                 Status(Code::kTimedOut, "the deadline passed while the request was queued"));
  }
  try {
    Reply(connection, request, handler(context, request.payload));
  } catch (const std::exception& e) {
    Reply(connection, request,
          Status(Code::kInternal, Str("the handler of '", request.method, "' threw: ", e.what())));
  } catch (...) {
    Reply(connection, request,
          Status(Code::kInternal, Str("the handler of '", request.method, "' threw")));
  }
}

Result<std::unique_ptr<Server>> Server::Create(const Clock& clock, Logger* log,
                                               const ServerOptions& options) {
  auto state = std::make_unique<State>(clock, log, options);
  net::StreamServerOptions stream;
  stream.bind_host = options.bind_host;
  stream.port = options.port;
  stream.thread_name = "mp-rpc-serve";
  stream.connections_max = options.connections_max;
  stream.buffered_bytes_max = options.buffered_bytes_max;
  stream.handshake_timeout = options.handshake_timeout;
  stream.receive_timeout = options.frame_timeout;
  stream.send_timeout = options.frame_timeout;
  stream.idle_timeout = options.idle_timeout;
  MOONPOOL_ASSIGN_OR_RETURN(state->stream, net::StreamServer::Create(clock, log, stream));
  return std::make_unique<Server>(std::move(state));
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() {
  Close();
  state_->work.reset();  // waits for the handlers, which use the rest
}

void Server::Handle(std::string method, Handler handler) {
  MOONPOOL_CHECK(!state_->started);
  MOONPOOL_CHECK(!method.empty() && method.size() <= kMethodBytesMax);
  MOONPOOL_CHECK(state_->handlers.emplace(std::move(method), std::move(handler)).second);
}

Status Server::Start() {
  if (state_->started) return Status(Code::kAlreadyExists, "the RPC server was started before");
  State* const state = state_.get();
  state->started = true;
  state->work = std::make_unique<net::WorkPool>(
      net::WorkPool::Options{.thread_name = "mp-rpc-work",
                             .threads = std::max(1, state->options.work_threads),
                             .queue_max = state->options.queue_max});
  state->stream->Start([state](const net::SessionContext& session) {
    const auto send = [state, id = session.id](std::string bytes) {
      state->stream->Send(id, {.bytes = std::move(bytes)});
    };
    const auto on_request = [state, session](const Frame& frame) {
      state->requests.fetch_add(1, std::memory_order_relaxed);
      const auto it = state->handlers.find(frame.method);
      if (it == state->handlers.end()) {
        state->requests_refused.fetch_add(1, std::memory_order_relaxed);
        return state->Reply(session.id, frame,
                            Status(Code::kUnsupported, Str("unknown method '", frame.method, "'")));
      }
      CallContext context;
      context.peer = session.peer.ToString();
      context.peer_host = session.peer.host();
      context.stop = session.stop;
      if (frame.timeout_ms != 0) {
        context.deadline = After(state->clock.Now(), std::chrono::milliseconds(frame.timeout_ms));
      }
      Frame owned = frame;
      owned.method = it->first;
      auto job = [state, &handler = it->second, owned, payload = std::string(frame.payload),
                  id = session.id, context = std::move(context)]() mutable {
        owned.payload = payload;
        state->Run(handler, id, owned, context);
      };
      if (state->work->Submit(std::move(job))) return;
      state->requests_refused.fetch_add(1, std::memory_order_relaxed);
      state->Reply(session.id, frame,
                   Status(Code::kAgain, Str("the request queue is full (", state->options.queue_max,
                                            " requests)")));
    };
    return std::make_unique<RpcSession>(state->options, send, on_request);
  });
  return Status::Ok();
}

uint16_t Server::port() const { return state_->stream->port(); }

void Server::Close() {
  state_->stream->Close();  // requests the stop of every connection's calls
  if (state_->work) state_->work->Close(kClosePatience);
}

ServerMetrics Server::Metrics() const {
  const net::StreamServerMetrics stream = state_->stream->Metrics();
  ServerMetrics out;
  out.connections_open = stream.connections_open;
  out.connections_accepted = stream.connections_accepted;
  out.connections_evicted = stream.connections_evicted;
  out.connections_rejected = stream.connections_rejected;
  out.requests = state_->requests.load(std::memory_order_relaxed);
  out.requests_refused = state_->requests_refused.load(std::memory_order_relaxed);
  return out;
}

}  // namespace moonpool::rpc
