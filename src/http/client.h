#pragma once

// A small HTTP/1.1 client: one request, one response, by a deadline. Connections are kept and
// reused; one that the server has closed in the meantime is replaced, and the request sent again if
// its method allows that (all but POST).
//
// Not responsible for: TLS, redirects, cookies, compression. A response with an error status is a
// result, not a failure.
//
// Threads: thread-safe; calls block their own thread. Ownership: the clock outlives the client.
//
// Errors, with the server's name and the phase in the message: kInvalidArgument (URL), kUnavailable
// (name unknown, refused, reset), kTimedOut, kCorrupt (the answer is no HTTP), kExhausted (no
// descriptors, or the answer is over the bound), kCancelled (Close).
//
//   http::Client client(clock);
//   auto response = client.Send({"http://10.0.0.1:8080/metrics"}, After(clock.Now(), 3s));

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "http/message.h"

namespace moonpool::http {

struct ClientRequest {
  std::string url{};
  std::string method = "GET";
  std::map<std::string, std::string> query{};  // added to the URL's own
  std::string body{};
  Headers headers{};
};

class Client {
 public:
  // Idle connections kept: one for each of the few servers that a process talks to, twice.
  static constexpr size_t kIdleMax = 16;

  explicit Client(const Clock& clock, size_t body_bytes_max = kBodyBytesMax);
  ~Client();  // Close
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Result<Response> Send(const ClientRequest& request, Time deadline);

  // Ends all calls, the present and the later ones, with kCancelled. Idempotent; returns when no
  // call is in progress.
  void Close();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace moonpool::http
