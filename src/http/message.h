#pragma once

// HTTP/1.1 messages as values, and the decoder of both sides: strict about what frames a message
// (RFC 9112), so that two readers never disagree where one ends.
//
// Not responsible for: connections (http/server.h, http/client.h), TLS, compression, trailers
// (skipped).
//
// Threads: values and pure functions.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace moonpool::http {

inline constexpr size_t kHeaderBytesMax =
    size_t{16} * 1024;  // request or status line and all fields
inline constexpr size_t kBodyBytesMax = 64u << 20;
// A chunked body is decoded from its beginning whenever more of it has come: hence less.
inline constexpr size_t kChunkedBytesMax = 2u << 20;

struct LessIgnoringCase {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const;
};
// Field names compare without regard to case. Values of a repeated field are joined by ", ".
using Headers = std::map<std::string, std::string, LessIgnoringCase>;

struct Request {
  std::string method = "GET";
  std::string path = "/";                      // decoded
  std::map<std::string, std::string> query{};  // decoded; of a repeated name the last
  Headers headers{};
  std::string body{};
  std::string peer{};  // set by the server: who asks
};

struct Response {
  int status = 200;
  Headers headers{};
  std::string body{};
};

inline Response Text(int status, std::string body) {
  return Response{status, {{"Content-Type", "text/plain; charset=utf-8"}}, std::move(body)};
}

// A message and what its end means for the connection.
template <typename Message>
struct Decoded {
  Message message;
  size_t bytes = 0;        // of input that it took
  bool keep_alive = true;  // another message may follow on this connection
};

// The first request of `bytes`; empty: not all there yet. kInvalidArgument (answer 400),
// kExhausted (the header or the body is over its bound: 431 or 413), kUnsupported (501). If
// `wants_continue` is given, it is set when the header is complete and the client waits for
// "100 Continue" before it sends the body.
Result<std::optional<Decoded<Request>>> DecodeRequest(std::string_view bytes,
                                                      size_t body_bytes_max = kBodyBytesMax,
                                                      bool* wants_continue = nullptr);

// The first response, to a request with `method`; interim ones (1xx) are skipped. `eof`: nothing
// follows `bytes`, which ends a body without a length. kCorrupt; kExhausted.
struct ResponseContext {
  std::string_view method = "GET";
  bool eof = false;
  size_t body_bytes_max = kBodyBytesMax;
};
Result<std::optional<Decoded<Response>>> DecodeResponse(std::string_view bytes,
                                                        const ResponseContext& context);

// Content-Length is added; fields with a line break in them are dropped.
std::string Encode(const Request& request, std::string_view host);
std::string Encode(const Response& response, bool keep_alive, bool head_only = false);

std::string_view ReasonOf(int status);

// "%2F" to "/"; empty for a malformed escape. A plus sign becomes a space with `form`.
std::optional<std::string> PercentDecode(std::string_view text, bool form = false);
// Everything but letters, digits and "-._~" escaped.
std::string PercentEncode(std::string_view text);

// http://host[:port][/path][?query]. kUnsupported for https, kInvalidArgument for what is no URL.
struct Url {
  std::string host{};
  uint16_t port = 80;
  std::string path = "/";  // decoded
  std::map<std::string, std::string> query{};
};
Result<Url> ParseUrl(std::string_view text);

}  // namespace moonpool::http
