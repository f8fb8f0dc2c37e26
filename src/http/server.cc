#include "http/server.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "base/str.h"
#include "net/stream_server.h"
#include "net/work_pool.h"

namespace moonpool::http {
namespace {

// How long Close waits for handlers; with the rest it stays under 1 s.
constexpr Duration kClosePatience = std::chrono::milliseconds(700);

Response ErrorText(int status, std::string_view what) {
  return Text(status, Str(ReasonOf(status), ": ", what, "\n"));
}

int StatusOf(const Status& refusal) {
  if (refusal.code() == Code::kUnsupported) return 501;
  if (refusal.code() != Code::kExhausted) return 400;
  return refusal.message().find("body") != std::string::npos ? 413 : 431;
}

}  // namespace

struct Server::State {
  State(const Clock& clock_in, Logger* log_in, ServerOptions options_in)
      : clock(clock_in), log(log_in), options(std::move(options_in)) {}

  const Clock& clock;
  Logger* const log;
  const ServerOptions options;
  std::map<std::string, std::map<std::string, Handler>> routes;  // by path, then method; constant
  bool started = false;                                          // of the thread that sets up
  std::unique_ptr<net::StreamServer> stream;
  std::unique_ptr<net::WorkPool> work;  // its jobs use all of the above

  Response Answer(const Request& request) const;
  const std::map<std::string, Handler>* Route(const std::string& path) const;
};

const std::map<std::string, Server::Handler>* Server::State::Route(const std::string& path) const {
  if (const auto it = routes.find(path); it != routes.end()) return &it->second;
  for (size_t slash = path.rfind('/'); slash != std::string::npos;
       slash = slash == 0 ? std::string::npos : path.rfind('/', slash - 1)) {
    const auto it = routes.find(path.substr(0, slash) + "/*");
    if (it != routes.end()) return &it->second;
  }
  return nullptr;
}

Response Server::State::Answer(const Request& request) const {
  const auto* methods = Route(request.path);
  if (methods == nullptr) return ErrorText(404, "nothing is served at this path");
  const auto it = methods->find(request.method == "HEAD" ? "GET" : request.method);
  if (it == methods->end()) {
    Response response = ErrorText(405, "this path does not have this method");
    std::string allowed;
    for (const auto& [method, handler] : *methods) {
      allowed += (allowed.empty() ? "" : ", ") + method;
    }
    response.headers["Allow"] = allowed;
    return response;
  }
  try {
    return it->second(request);
  } catch (const std::exception& e) {
    return ErrorText(500, e.what());
  } catch (...) {
    return ErrorText(500, "the handler threw");
  }
}

namespace {

// The protocol of one connection: one request after the other.
class HttpSession final : public net::Session {
 public:
  struct Callbacks {
    std::function<void(net::StreamServer::Output)> send{};
    // Sees to it that one reply is sent, at once or later.
    std::function<void(Request, bool keep_alive)> on_request;
  };
  HttpSession(size_t body_bytes_max, Callbacks callbacks)
      : body_bytes_max_(body_bytes_max), callbacks_(std::move(callbacks)) {}

  Result<size_t> OnBytes(std::string_view bytes) override {
    partial_ = false;
    if (busy_ || bytes.empty()) return 0;
    bool wants_continue = false;
    auto decoded = DecodeRequest(bytes, body_bytes_max_, &wants_continue);
    if (!decoded.ok()) {
      const Response refusal = ErrorText(StatusOf(decoded.status()), decoded.status().message());
      callbacks_.send({.bytes = Encode(refusal, false)});
      return decoded.status();
    }
    if (!decoded->has_value()) {
      partial_ = true;
      if (wants_continue && !std::exchange(continued_, true)) {
        callbacks_.send({.bytes = "HTTP/1.1 100 Continue\r\n\r\n"});
      }
      return 0;
    }
    Decoded<Request>& request = **decoded;
    established_ = true;
    continued_ = false;
    busy_ = true;
    callbacks_.on_request(std::move(request.message), request.keep_alive);
    return request.bytes;
  }

  void OnReply() override { busy_ = false; }
  net::SessionPhase phase() const override {
    if (!established_) return net::SessionPhase::kHandshake;
    if (busy_) return net::SessionPhase::kBusy;
    return partial_ ? net::SessionPhase::kReceiving : net::SessionPhase::kIdle;
  }
  bool wants_bytes() const override { return !busy_; }
  bool StaysAfterEof() const override { return true; }

 private:
  const size_t body_bytes_max_;
  const Callbacks callbacks_;
  bool established_ = false;  // one request was complete
  bool busy_ = false;
  bool partial_ = false;    // a request has begun and is not all there
  bool continued_ = false;  // the client was told to send its body
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Create(const Clock& clock, Logger* log,
                                               const ServerOptions& options) {
  auto state = std::make_unique<State>(clock, log, options);
  net::StreamServerOptions stream;
  stream.bind_host = options.bind_host;
  stream.port = options.port;
  stream.thread_name = "mp-http";
  stream.connections_max = options.connections_max;
  stream.buffered_bytes_max = options.buffered_bytes_max;
  stream.handshake_timeout = options.request_timeout;
  stream.receive_timeout = options.request_timeout;
  stream.send_timeout = options.request_timeout;
  stream.idle_timeout = options.idle_timeout;
  stream.tick = options.tick;
  stream.on_tick = options.on_tick;
  MOONPOOL_ASSIGN_OR_RETURN(state->stream, net::StreamServer::Create(clock, log, stream));
  return std::make_unique<Server>(std::move(state));
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() {
  Close();
  state_->work.reset();  // waits for the handlers, which use the rest
}

void Server::Handle(const std::string& method, const std::string& path, Handler handler) {
  MOONPOOL_CHECK(!state_->started);
  MOONPOOL_CHECK(path.starts_with("/"));
  MOONPOOL_CHECK(state_->routes[path].emplace(method, std::move(handler)).second);
}

Status Server::Start() {
  if (state_->started) return Status(Code::kAlreadyExists, "the HTTP server was started before");
  State* const state = state_.get();
  state->started = true;
  state->work = std::make_unique<net::WorkPool>(
      net::WorkPool::Options{.thread_name = "mp-http-work",
                             .threads = std::max(1, state->options.work_threads),
                             .queue_max = state->options.queue_max});
  state->stream->Start([state](const net::SessionContext& session) {
    HttpSession::Callbacks callbacks;
    callbacks.send = [state, id = session.id](net::StreamServer::Output output) {
      state->stream->Send(id, std::move(output));
    };
    callbacks.on_request = [state, id = session.id, peer = session.peer.ToString()](
                               Request request, bool keep_alive) {
      request.peer = peer;
      const bool head_only = request.method == "HEAD";
      const auto reply = [state, id, keep_alive, head_only](const Response& response) {
        state->stream->Send(id, {.bytes = Encode(response, keep_alive, head_only),
                                 .reply = true,
                                 .then_close = !keep_alive});
      };
      auto job = [state, reply, request = std::move(request)] { reply(state->Answer(request)); };
      if (!state->work->Submit(std::move(job))) reply(ErrorText(503, "the request queue is full"));
    };
    return std::make_unique<HttpSession>(state->options.body_bytes_max, std::move(callbacks));
  });
  return Status::Ok();
}

uint16_t Server::port() const { return state_->stream->port(); }

void Server::Close() {
  state_->stream->Close();
  if (state_->work) state_->work->Close(kClosePatience);
}

}  // namespace moonpool::http
