#include "trace.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <random>
#include <system_error>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include "json_text.hpp"

namespace muster::inline v0::serve {
namespace {

bool is_identity(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         text.find_first_not_of('0') != std::string_view::npos;
}

std::optional<trace_place> place_of(std::string_view trace, std::string_view span) {
  if ((!is_identity(trace, 32) && !is_identity(trace, 16)) || !is_identity(span, 16)) return std::nullopt;
  return trace_place{std::string(trace), std::string(span)};
}

// VERSION-TRACE-SPAN-FLAGS; later versions may have more behind the flags.
std::optional<trace_place> read_w3c(std::string_view text) {
  const bool is_whole = text.size() == 55 || (text.size() > 55 && text[55] == '-' && !text.starts_with("00"));
  if (!is_whole || text.starts_with("ff") || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  constexpr std::string_view odd = "13579bdf";
  if (odd.find(text[54]) == std::string_view::npos) return std::nullopt;  // the flag that it is recorded
  return is_identity(text.substr(3, 32), 32) ? place_of(text.substr(3, 32), text.substr(36, 16)) : std::nullopt;
}

// TRACE-SPAN, TRACE-SPAN-SAMPLED or TRACE-SPAN-SAMPLED-PARENT; without a decision it is recorded.
std::optional<trace_place> read_b3(std::string_view text) {
  const auto trace = text.substr(0, text.find('-'));
  text.remove_prefix(std::min(text.size(), trace.size() + 1));
  const auto span = text.substr(0, text.find('-'));
  text.remove_prefix(std::min(text.size(), span.size() + 1));
  return text.starts_with('0') ? std::nullopt : place_of(trace, span);
}

std::string hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::optional<trace_place> read_trace(const boost::beast::http::fields& headers) {
  const auto value = [&](boost::beast::string_view name) -> std::string_view {
    const auto text = headers[name];
    return {text.data(), text.size()};
  };
  if (const auto text = value("traceparent"); !text.empty()) return read_w3c(text);
  if (const auto text = value("b3"); !text.empty()) return read_b3(text);
  const auto sampled = value("X-B3-Sampled");
  if (sampled == "0" || sampled == "false") return std::nullopt;
  return place_of(value("X-B3-TraceId"), value("X-B3-SpanId"));
}

span_log::span_log(const std::string& path) : next_((std::uint64_t{std::random_device()()} << 32) + 1) {
  if (path.empty()) return;
  // Not to wait for a reader of a pipe, neither here nor when it is full.
  file_ = detail::descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file_) {
    throw configuration_error("spans cannot be written to " + path + " (" + std::generic_category().message(errno) +
                              "); give a file that can be written, or a pipe that is read");
  }
}

void span_log::write(const trace_place& caller, const request_times& times, std::string_view target,
                     std::string_view model, int status) {
  using std::chrono::microseconds;
  const auto now = clock::now();
  const auto wall = std::chrono::system_clock::now();
  const auto made = [&] { return hexadecimal(mix(next_.fetch_add(1, std::memory_order_relaxed))); };
  std::string text = "[";
  const auto add = [&](const std::string& id, const std::string& parent, std::string_view name, clock::time_point from,
                       clock::time_point to) {
    const auto since = std::chrono::duration_cast<microseconds>((wall - (now - from)).time_since_epoch());
    if (text.size() > 1) text += "},";
    text += "{\"traceId\":\"" + caller.trace + "\",\"parentId\":\"" + parent + "\",\"id\":\"" + id + "\",\"name\":";
    append_string(text, name);
    text += ",\"timestamp\":" + std::to_string(since.count()) + ",\"duration\":" +
            std::to_string(std::max<std::int64_t>(1, std::chrono::duration_cast<microseconds>(to - from).count()));
    text += ",\"localEndpoint\":{\"serviceName\":\"muster-serve\"}";
  };
  const std::string whole = made();
  add(whole, caller.span, target, times.received, now);
  text += ",\"kind\":\"SERVER\",\"tags\":{\"http.status_code\":\"" + std::to_string(status) + "\",\"model\":";
  append_string(text, model);
  text += '}';
  constexpr clock::time_point never{};
  if (times.submitted != never) add(made(), whole, "receive", times.received, times.submitted);
  if (times.begun != never) add(made(), whole, "queue", times.submitted, times.begun);
  if (times.predicted != never) add(made(), whole, "predict", times.begun, times.predicted);
  text += "}]\n";
  [[maybe_unused]] const auto written = ::write(file_.get(), text.data(), text.size());
}

}  // namespace muster::inline v0::serve
