#include "http/message.h"

#include <algorithm>
#include <charconv>

#include "base/str.h"
#include "net/address.h"

namespace moonpool::http {
namespace {

constexpr size_t kFieldsMax = 100;
constexpr size_t kQueryMax = 100;

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

// RFC 9110 section 5.6.2.
bool IsToken(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), good);
}

bool HasControl(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return (u < 0x20 && c != '\t') || u == 0x7f;
  });
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

Status Malformed(std::string_view what) {
  return Status(Code::kInvalidArgument, Str("malformed HTTP message: ", what));
}

// The header's lines without the blank one; `bytes` is where the body begins.
struct Head {
  std::string_view start_line;
  Headers headers;
  size_t bytes = 0;
};

Status AddField(std::string_view line, Headers& headers) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return Malformed("a field without a colon");
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = Trim(line.substr(colon + 1));
  if (!IsToken(name)) return Malformed("a field with an impossible name");
  if (HasControl(value)) return Malformed("a field with a control character");
  const auto [it, added] = headers.emplace(name, value);
  if (!added) it->second += Str(", ", value);
  return Status::Ok();
}

Result<std::optional<Head>> DecodeHead(std::string_view bytes) {
  Head head;
  // One empty line before a message is ignored (RFC 9112 section 2.2).
  size_t at = bytes.starts_with("\r\n") ? 2 : 0;
  for (size_t lines = 0;; ++lines) {
    const size_t end = bytes.find("\r\n", at);
    if (std::min(end, bytes.size()) > kHeaderBytesMax) {
      return Status(Code::kExhausted, Str("HTTP header over ", kHeaderBytesMax, " bytes"));
    }
    if (end == std::string_view::npos) return std::optional<Head>();
    const std::string_view line = bytes.substr(at, end - at);
    at = end + 2;
    if (lines == 0) {
      head.start_line = line;
    } else if (line.empty()) {
      head.bytes = at;
      return std::optional<Head>(std::move(head));
    } else if (lines > kFieldsMax) {
      return Status(Code::kExhausted, Str("HTTP header with over ", kFieldsMax, " fields"));
    } else {
      MOONPOOL_RETURN_IF_ERROR(AddField(line, head.headers));
    }
  }
}

std::string_view Field(const Headers& headers, std::string_view name) {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string_view() : std::string_view(it->second);
}

// True when `list`, comma-separated, has `item`.
bool ListHas(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (EqualsIgnoringCase(Trim(list.substr(0, comma)), item)) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

bool KeepsAlive(const Headers& headers, std::string_view version) {
  const std::string_view connection = Field(headers, "Connection");
  if (version == "HTTP/1.0") return ListHas(connection, "keep-alive");
  return !ListHas(connection, "close");
}

// A body: how it is delimited.
struct Framing {
  bool chunked = false;
  std::optional<uint64_t> length;
};

Result<Framing> FramingOf(const Headers& headers, size_t body_bytes_max) {
  Framing framing;
  const auto encoding = headers.find("Transfer-Encoding");
  const auto length = headers.find("Content-Length");
  if (encoding != headers.end()) {
    if (length != headers.end()) return Malformed("Transfer-Encoding and Content-Length");
    if (!EqualsIgnoringCase(encoding->second, "chunked")) {
      return Status(Code::kUnsupported, "HTTP transfer encoding other than chunked");
    }
    framing.chunked = true;
  } else if (length != headers.end()) {
    const std::string_view text = length->second;
    uint64_t value = 0;
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (digits && error == std::errc::result_out_of_range)
      value = UINT64_MAX;
    else if (!digits || error != std::errc())
      return Malformed("Content-Length is not a number");
    if (value > body_bytes_max) {
      return Status(Code::kExhausted,
                    Str("HTTP body of ", text, " bytes, ", body_bytes_max, " allowed"));
    }
    framing.length = value;
  }
  return framing;
}

struct Body {
  std::string bytes;
  size_t taken = 0;  // of the input
};

// A chunked body (RFC 9112 section 7.1); trailers are skipped.
Result<std::optional<Body>> DecodeChunksIn(std::string_view bytes, size_t body_bytes_max) {
  Body body;
  const auto next_line = [&]() -> Result<std::optional<std::string_view>> {
    const size_t end = bytes.find("\r\n", body.taken);
    if (std::min(end, bytes.size()) - body.taken > kHeaderBytesMax) {
      return Status(Code::kExhausted, "HTTP chunk with a line that is too long");
    }
    if (end == std::string_view::npos) return std::optional<std::string_view>();
    const std::string_view line = bytes.substr(body.taken, end - body.taken);
    body.taken = end + 2;
    return std::optional<std::string_view>(line);
  };
  while (true) {
    MOONPOOL_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, next_line());
    if (!line) return std::optional<Body>();
    const std::string_view digits = line->substr(0, line->find(';'));
    uint64_t size = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
    if (digits.empty() || digits.front() == '-' || error != std::errc() ||
        end != digits.data() + digits.size()) {
      return Malformed("a chunk without a size");
    }
    if (size > body_bytes_max || body.bytes.size() + size > body_bytes_max) {
      return Status(Code::kExhausted, Str("HTTP body over ", body_bytes_max, " bytes"));
    }
    if (size == 0) break;
    if (bytes.size() - body.taken < size + 2) return std::optional<Body>();
    body.bytes.append(bytes.substr(body.taken, size));
    if (bytes.substr(body.taken + size, 2) != "\r\n") return Malformed("a chunk without an end");
    body.taken += size + 2;
  }
  const size_t trailers = body.taken;
  while (true) {
    MOONPOOL_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, next_line());
    if (!line) return std::optional<Body>();
    if (line->empty()) return std::optional<Body>(std::move(body));
    if (body.taken - trailers > kHeaderBytesMax) {
      return Status(Code::kExhausted, "HTTP trailers that are too long");
    }
  }
}

Result<std::optional<Body>> DecodeChunks(std::string_view bytes, size_t body_bytes_max) {
  const bool too_long = bytes.size() > 2 * kChunkedBytesMax;
  auto decoded = DecodeChunksIn(bytes.substr(0, 2 * kChunkedBytesMax),
                                std::min(body_bytes_max, kChunkedBytesMax));
  if (too_long && decoded.ok() && !decoded->has_value()) {
    return Status(Code::kExhausted, Str("chunked HTTP body over ", kChunkedBytesMax, " bytes"));
  }
  return decoded;
}

Result<std::optional<Body>> DecodeBody(std::string_view bytes, const Framing& framing,
                                       size_t body_bytes_max) {
  if (framing.chunked) return DecodeChunks(bytes, body_bytes_max);
  const uint64_t length = framing.length.value_or(0);
  if (bytes.size() < length) return std::optional<Body>();
  return std::optional<Body>(Body{std::string(bytes.substr(0, length)), length});
}

Status DecodeQuery(std::string_view text, std::map<std::string, std::string>& query) {
  while (!text.empty()) {
    const size_t amp = text.find('&');
    const std::string_view pair = text.substr(0, amp);
    const size_t equals = pair.find('=');
    const auto name = PercentDecode(pair.substr(0, equals), true);
    const auto value =
        PercentDecode(equals == pair.npos ? std::string_view() : pair.substr(equals + 1), true);
    if (!name || !value) return Malformed("an escape in the query");
    if (!pair.empty()) query[*name] = *value;
    if (query.size() > kQueryMax) return Malformed("too many query parameters");
    if (amp == text.npos) break;
    text.remove_prefix(amp + 1);
  }
  return Status::Ok();
}

Status DecodeTarget(std::string_view target, Request& request) {
  // A proxy's absolute form is accepted; the authority is not looked at.
  if (target.starts_with("http://")) {
    const size_t slash = target.find('/', 7);
    target = slash == target.npos ? std::string_view("/") : target.substr(slash);
  }
  if (target.empty() || (target.front() != '/' && target != "*")) {
    return Malformed("a target that is no path");
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  const auto path = PercentDecode(target.substr(0, mark));
  if (!path || path->find('\0') != std::string::npos) return Malformed("an escape in the path");
  request.path = *path;
  return mark == target.npos ? Status::Ok() : DecodeQuery(target.substr(mark + 1), request.query);
}

void AppendFields(const Headers& headers, std::string& out) {
  for (const auto& [name, value] : headers) {
    if (!IsToken(name) || HasControl(value)) continue;
    if (EqualsIgnoringCase(name, "Content-Length") || EqualsIgnoringCase(name, "Connection") ||
        EqualsIgnoringCase(name, "Transfer-Encoding")) {
      continue;
    }
    out += Str(name, ": ", value, "\r\n");
  }
}

}  // namespace

bool LessIgnoringCase::operator()(std::string_view a, std::string_view b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](char x, char y) { return Lower(x) < Lower(y); });
}

Result<std::optional<Decoded<Request>>> DecodeRequest(std::string_view bytes, size_t body_bytes_max,
                                                      bool* wants_continue) {
  MOONPOOL_ASSIGN_OR_RETURN(std::optional<Head> head, DecodeHead(bytes));
  if (!head) return std::optional<Decoded<Request>>();
  const std::string_view line = head->start_line;
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == line.npos || last == first) return Malformed("the request line");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsToken(method) || target.find(' ') != target.npos || HasControl(target)) {
    return Malformed("the request line");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.starts_with("HTTP/")) return Status(Code::kUnsupported, "HTTP version");
    return Malformed("the request line");
  }
  Decoded<Request> out;
  out.message.method = method;
  MOONPOOL_RETURN_IF_ERROR(DecodeTarget(target, out.message));
  if (version == "HTTP/1.1" && head->headers.count("Host") == 0) return Malformed("no Host field");
  MOONPOOL_ASSIGN_OR_RETURN(const Framing framing, FramingOf(head->headers, body_bytes_max));
  if (wants_continue != nullptr) {
    *wants_continue = EqualsIgnoringCase(Field(head->headers, "Expect"), "100-continue");
  }
  MOONPOOL_ASSIGN_OR_RETURN(std::optional<Body> body,
                            DecodeBody(bytes.substr(head->bytes), framing, body_bytes_max));
  if (!body) return std::optional<Decoded<Request>>();
  out.bytes = head->bytes + body->taken;
  out.keep_alive = KeepsAlive(head->headers, version);
  out.message.headers = std::move(head->headers);
  out.message.body = std::move(body->bytes);
  return std::optional<Decoded<Request>>(std::move(out));
}

namespace {

// From the status line and the fields on; kInvalidArgument where DecodeResponse says kCorrupt.
Result<std::optional<Decoded<Response>>> DecodeFinal(std::string_view bytes,
                                                     const ResponseContext& context) {
  size_t skipped = 0;
  while (true) {
    MOONPOOL_ASSIGN_OR_RETURN(std::optional<Head> head, DecodeHead(bytes.substr(skipped)));
    if (!head) return std::optional<Decoded<Response>>();
    const std::string_view line = head->start_line;
    const bool known = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
    const std::string_view digits = known ? line.substr(9, 3) : std::string_view();
    if (digits.size() != 3 || digits.find_first_not_of("0123456789") != digits.npos ||
        digits.front() < '1' || digits.front() > '5' || (line.size() > 12 && line[12] != ' ')) {
      return Malformed("the status line");
    }
    Decoded<Response> out;
    std::from_chars(digits.data(), digits.data() + 3, out.message.status);
    skipped += head->bytes;
    if (out.message.status < 200 && out.message.status != 101) continue;
    MOONPOOL_ASSIGN_OR_RETURN(Framing framing, FramingOf(head->headers, context.body_bytes_max));
    out.keep_alive = KeepsAlive(head->headers, line.substr(0, 8));
    const bool none =
        context.method == "HEAD" || out.message.status == 204 || out.message.status == 304;
    if (none) framing = Framing{.chunked = false, .length = 0};
    std::string_view rest = bytes.substr(skipped);
    if (!framing.chunked && !framing.length) {  // the body ends with the connection
      if (rest.size() > context.body_bytes_max) {
        return Status(Code::kExhausted, Str("HTTP body over ", context.body_bytes_max, " bytes"));
      }
      if (!context.eof) return std::optional<Decoded<Response>>();
      framing.length = rest.size();
      out.keep_alive = false;
    }
    MOONPOOL_ASSIGN_OR_RETURN(std::optional<Body> body,
                              DecodeBody(rest, framing, context.body_bytes_max));
    if (!body) return std::optional<Decoded<Response>>();
    out.bytes = skipped + body->taken;
    out.message.headers = std::move(head->headers);
    out.message.body = std::move(body->bytes);
    return std::optional<Decoded<Response>>(std::move(out));
  }
}

}  // namespace

Result<std::optional<Decoded<Response>>> DecodeResponse(std::string_view bytes,
                                                        const ResponseContext& context) {
  auto out = DecodeFinal(bytes, context);
  if (out.code() == Code::kInvalidArgument) return Status(Code::kCorrupt, out.status().message());
  return out;
}

std::string Encode(const Request& request, std::string_view host) {
  std::string target;
  for (const char c : request.path) {
    target += c == '/' ? std::string(1, c) : PercentEncode(std::string_view(&c, 1));
  }
  char mark = '?';
  for (const auto& [name, value] : request.query) {
    target += Str(mark, PercentEncode(name), "=", PercentEncode(value));
    mark = '&';
  }
  std::string out = Str(request.method, " ", target, " HTTP/1.1\r\nHost: ", host, "\r\n");
  AppendFields(request.headers, out);
  if (!request.body.empty() || (request.method != "GET" && request.method != "HEAD")) {
    out += Str("Content-Length: ", request.body.size(), "\r\n");
  }
  return out + "\r\n" + request.body;
}

std::string Encode(const Response& response, bool keep_alive, bool head_only) {
  std::string out = Str("HTTP/1.1 ", response.status, " ", ReasonOf(response.status),
                        "\r\nContent-Length: ", response.body.size(), "\r\n",
                        keep_alive ? "" : "Connection: close\r\n");
  AppendFields(response.headers, out);
  out += "\r\n";
  if (!head_only) out += response.body;
  return out;
}

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 507:
      return "Insufficient Storage";
    default:
      return "Status";
  }
}

std::optional<std::string> PercentDecode(std::string_view text, bool form) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += form && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    unsigned value = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const auto [end, error] = std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16);
    if (error != std::errc() || end != &text[i + 1] + 2) return std::nullopt;
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

std::string PercentEncode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      const auto u = static_cast<unsigned char>(c);
      out += {'%', kHex[u >> 4], kHex[u & 15]};
    }
  }
  return out;
}

Result<Url> ParseUrl(std::string_view text) {
  if (text.starts_with("https://")) {
    return Status(Code::kUnsupported, "https URLs; only http:// is supported");
  }
  if (!text.starts_with("http://")) {
    return Status(Code::kInvalidArgument, "not a URL of the form http://host[:port][/path]");
  }
  std::string_view rest = text.substr(7);
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  rest.remove_prefix(authority.size());
  if (authority.find('@') != authority.npos) {
    return Status(Code::kUnsupported, "URLs with a user name");
  }
  MOONPOOL_ASSIGN_OR_RETURN(const net::HostPort at, net::ParseHostPort(authority, 80));
  Request request;
  const std::string target = rest.starts_with("/") ? std::string(rest) : Str("/", rest);
  MOONPOOL_RETURN_IF_ERROR(DecodeTarget(target, request));
  return Url{at.host, at.port, request.path, request.query};
}

}  // namespace moonpool::http
