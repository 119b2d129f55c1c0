#include "serve/trace.hpp"

#include "catch.hpp"

namespace serve = muster::serve;

namespace {

const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", span = "00f067aa0ba902b7", zeros(32, '0');

/// Returns the trace of a header as "TRACE SPAN", or an empty text if there is no trace.
std::string read(const std::string& name, const std::string& value, const std::string& span_header = "",
                 const std::string& sampled = "") {
  boost::beast::http::fields headers;
  headers.set(name, value);
  if (!span_header.empty()) headers.set("X-B3-SpanId", span_header);
  if (!sampled.empty()) headers.set("X-B3-Sampled", sampled);
  const auto found = serve::read_trace(headers);
  return found ? found->trace + " " + found->span : std::string();
}

const std::string both = trace + " " + span, half = trace.substr(16) + " " + span;

}  // namespace

TEST_CASE("a trace is read of W3C's header") {
  const std::string head = "00-" + trace + "-" + span;
  CHECK(read("traceparent", head + "-01") == both);
  CHECK(read("Traceparent", head + "-03") == both);
  CHECK(read("traceparent", "cc-" + trace + "-" + span + "-01-what-later-versions-add") == both);
  CHECK(read("traceparent", head + "-00").empty());  // not recorded
  for (const std::string& bad :
       {head + "-1", head + "-01-more", "ff-" + trace + "-" + span + "-01", "00-" + zeros + "-" + span + "-01",
        "00-" + trace + "-" + zeros.substr(16) + "-01", "00-" + trace + span + "--01", std::string("00-"),
        "00-" + trace.substr(1) + "G-" + span + "-01"}) {
    INFO(bad);
    CHECK(read("traceparent", bad).empty());
  }
}

TEST_CASE("a trace is read of B3's headers, together and single") {
  for (const std::string end : {"", "-1", "-d", "-1-05e3ac9a4f6e3b90"}) {
    CHECK(read("b3", trace + "-" + span + end) == both);
    CHECK(read("b3", trace.substr(16) + "-" + span + end) == half);
  }
  for (const std::string& bad : {std::string("0"), std::string("1"), std::string("-"), trace, trace + "-" + span + "-0",
                                 trace.substr(1) + "-" + span, trace + "-" + span.substr(1)}) {
    INFO(bad);
    CHECK(read("b3", bad).empty());
  }
  CHECK(read("X-B3-TraceId", trace, span) == both);
  CHECK(read("x-b3-traceid", trace.substr(16), span, "1") == half);
  CHECK(read("X-B3-TraceId", trace, span, "0").empty());
  CHECK(read("X-B3-TraceId", trace).empty());
  CHECK(read("X-Other", trace).empty());
}

TEST_CASE("each prefix of a header is read or left") {
  const std::string w3c = "00-" + trace + "-" + span + "-01", b3 = trace + "-" + span + "-1";
  for (std::size_t size = 1; size < w3c.size(); ++size) CHECK(read("traceparent", w3c.substr(0, size)).empty());
  const std::size_t ids = trace.size() + 1 + span.size();
  for (std::size_t size = 1; size < b3.size(); ++size) CHECK(read("b3", b3.substr(0, size)).empty() == (size < ids));
}
