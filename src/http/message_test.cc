#include "http/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moonpool::http {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

Decoded<Request> Parsed(std::string_view bytes) {
  auto request = DecodeRequest(bytes);
  EXPECT_TRUE(request.ok()) << request.status().ToString();
  if (!request.ok() || !request->has_value()) return {};
  return **request;
}

Code RefusedAs(std::string_view bytes) {
  const auto request = DecodeRequest(bytes);
  EXPECT_FALSE(request.ok()) << bytes.substr(0, 200);
  return request.code();
}

Decoded<Response> ParsedResponse(std::string_view bytes, const ResponseContext& context = {}) {
  auto response = DecodeResponse(bytes, context);
  EXPECT_TRUE(response.ok()) << response.status().ToString();
  if (!response.ok() || !response->has_value()) return {};
  return **response;
}

TEST(RequestTest, ReadsAllItsParts) {
  const std::string text =
      "PUT /a%20b/c?key=x%2Fy&empty=&plus=a+b HTTP/1.1\r\nHost: h\r\nX-Two: 1\r\nx-two: 2\r\n"
      "Content-Length: 4\r\n\r\nbodyGET";
  const auto request = Parsed(text);
  EXPECT_EQ(request.message.method, "PUT");
  EXPECT_EQ(request.message.path, "/a b/c");
  EXPECT_EQ(request.message.query.at("key"), "x/y");
  EXPECT_EQ(request.message.query.at("empty"), "");
  EXPECT_EQ(request.message.query.at("plus"), "a b");
  EXPECT_EQ(request.message.headers.at("X-TWO"), "1, 2");
  EXPECT_EQ(request.message.body, "body");
  EXPECT_EQ(request.bytes, text.size() - 3);
  EXPECT_TRUE(request.keep_alive);
}

TEST(RequestTest, EveryPrefixIsIncompleteAndNotAnError) {
  const std::string text = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
  for (size_t size = 0; size < text.size(); ++size) {
    const auto request = DecodeRequest(std::string_view(text).substr(0, size));
    ASSERT_TRUE(request.ok()) << size;
    EXPECT_FALSE(request->has_value()) << size;
  }
}

TEST(RequestTest, ChunksArePutTogether) {
  const auto request = Parsed(
      "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4;x=y\r\nbody\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nrest");
  EXPECT_EQ(request.message.body, "body0123456789");
}

TEST(RequestTest, ConnectionsAreKeptByVersionAndField) {
  EXPECT_FALSE(Parsed("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(Parsed("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive);
  EXPECT_FALSE(Parsed("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, close\r\n\r\n").keep_alive);
}

TEST(RequestTest, AWaitingClientIsNoticedOnceItsHeaderIsComplete) {
  bool waits = false;
  const auto request = DecodeRequest(
      "PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
      kBodyBytesMax, &waits);
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->has_value());
  EXPECT_TRUE(waits);
}

TEST(RequestTest, AnAbsoluteTargetIsAPath) {
  EXPECT_EQ(Parsed("GET http://h:1/p?q=1 HTTP/1.1\r\nHost: h\r\n\r\n").message.path, "/p");
}

TEST(RequestTest, MalformedMessagesAreRefused) {
  for (const char* text :
       {"GET\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET / x HTTP/1.1\r\n\r\n",
        "G(T / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
        "GET x HTTP/1.1\r\nHost: h\r\n\r\n", "GET /%2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : h\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\x01z\r\n\r\n", "GET / JUNK/1.1\r\nHost: h\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"}) {
    EXPECT_EQ(RefusedAs(text), Code::kInvalidArgument) << text;
  }
}

TEST(RequestTest, AmbiguousLengthsAreRefused) {
  const auto with = [](const std::string& fields) {
    return "PUT / HTTP/1.1\r\nHost: h\r\n" + fields + "\r\n";
  };
  for (const char* fields :
       {"Content-Length: 1\r\nContent-Length: 2\r\n", "Content-Length: +1\r\n",
        "Content-Length: -1\r\n", "Content-Length: 1x\r\n", "Content-Length: \r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"}) {
    EXPECT_EQ(RefusedAs(with(fields)), Code::kInvalidArgument) << fields;
  }
  EXPECT_EQ(RefusedAs(with("Transfer-Encoding: gzip, chunked\r\n")), Code::kUnsupported);
  EXPECT_EQ(RefusedAs("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), Code::kUnsupported);
}

TEST(RequestTest, BadChunksAreRefused) {
  const std::string head = "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body : {"\r\n", "x\r\n", "-1\r\n", "1\r\nabc", "1 \r\na\r\n"}) {
    EXPECT_EQ(RefusedAs(head + body), Code::kInvalidArgument) << body;
  }
  EXPECT_EQ(RefusedAs(head + "ffffffffffffffff\r\n"), Code::kExhausted);
}

TEST(RequestTest, EveryBoundHolds) {
  EXPECT_EQ(RefusedAs("GET /" + std::string(kHeaderBytesMax, 'x')), Code::kExhausted);
  std::string fields = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 200; ++i) fields += "a: b\r\n";
  EXPECT_EQ(RefusedAs(fields), Code::kExhausted);
  for (const char* length : {"67108865", "99999999999999999999999"}) {
    EXPECT_EQ(RefusedAs("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: "s + length + "\r\n\r\n"),
              Code::kExhausted);
  }
  std::string chunks = "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (size_t i = 0; i < kChunkedBytesMax / 2; ++i) chunks += "1\r\nx\r\n";
  EXPECT_EQ(RefusedAs(chunks), Code::kExhausted);
}

TEST(ResponseTest, ReadsBackWhatWasWritten) {
  const Response response{409, {{"X-Version", "7"}}, "taken"};
  const std::string bytes = Encode(response, true);
  const auto decoded = ParsedResponse(bytes + "more");
  EXPECT_EQ(decoded.message.status, 409);
  EXPECT_EQ(decoded.message.headers.at("x-version"), "7");
  EXPECT_EQ(decoded.message.body, "taken");
  EXPECT_EQ(decoded.bytes, bytes.size());
  EXPECT_TRUE(decoded.keep_alive);
  EXPECT_FALSE(ParsedResponse(Encode(response, false)).keep_alive);
}

TEST(ResponseTest, InterimOnesAreSkipped) {
  EXPECT_EQ(ParsedResponse("HTTP/1.1 100 Continue\r\n\r\n" + Encode(Text(404, "no"), true))
                .message.status,
            404);
}

TEST(ResponseTest, WithoutALengthTheBodyEndsWithTheConnection) {
  const std::string bytes = "HTTP/1.1 200\r\n\r\nall of it";
  EXPECT_FALSE(DecodeResponse(bytes, {}).value().has_value());
  const auto decoded = ParsedResponse(bytes, {.eof = true});
  EXPECT_EQ(decoded.message.body, "all of it");
  EXPECT_FALSE(decoded.keep_alive);
}

TEST(ResponseTest, SomeHaveNoBody) {
  EXPECT_EQ(ParsedResponse("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", {.method = "HEAD"})
                .message.status,
            200);
  EXPECT_EQ(ParsedResponse("HTTP/1.1 204 No Content\r\n\r\n").message.status, 204);
}

TEST(ResponseTest, ForeignBytesAreCorrupt) {
  for (const char* text : {"MPR1\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 900 X\r\n\r\n",
                           "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"}) {
    EXPECT_EQ(DecodeResponse(text, {}).code(), Code::kCorrupt) << text;
  }
}

TEST(EncodeTest, RequestsReadBack) {
  Request request{.method = "PUT", .path = "/a b/ä", .body = "body"};
  request.query["key"] = "x/y&z=1 +%";
  const auto decoded = Parsed(Encode(request, "h:1"));
  EXPECT_EQ(decoded.message.path, request.path);
  EXPECT_EQ(decoded.message.query, request.query);
  EXPECT_EQ(decoded.message.body, "body");
  EXPECT_EQ(decoded.message.headers.at("Host"), "h:1");
}

TEST(EncodeTest, FieldsCannotSmuggleLines) {
  Response response = Text(200, "");
  response.headers["X-Evil"] = "a\r\nSet-Cookie: b";
  response.headers["X Evil"] = "c";
  EXPECT_THAT(Encode(response, true), ::testing::Not(HasSubstr("Evil")));
}

TEST(UrlTest, ReadsTheUsualForms) {
  const auto url = ParseUrl("http://[::1]:8080/meta%20data?key=a%2Fb");
  ASSERT_TRUE(url.ok()) << url.status().ToString();
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, 8080);
  EXPECT_EQ(url->path, "/meta data");
  EXPECT_EQ(url->query.at("key"), "a/b");
  EXPECT_EQ(ParseUrl("http://node7").value().port, 80);
  EXPECT_EQ(ParseUrl("http://node7?x=1").value().path, "/");
}

TEST(UrlTest, SaysWhatIsWrong) {
  EXPECT_EQ(ParseUrl("https://node7").code(), Code::kUnsupported);
  EXPECT_EQ(ParseUrl("http://me@node7").code(), Code::kUnsupported);
  EXPECT_EQ(ParseUrl("node7:80").code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseUrl("http://").code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseUrl("http://node7:x/").code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace moonpool::http
