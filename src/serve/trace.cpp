#include "trace.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <system_error>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/core/text.hpp>
#include "json_text.hpp"

namespace muster { inline namespace v0 { namespace serve {

std::optional<trace_place> read_trace(const boost::beast::http::fields& headers) {
  const auto value = [&](const char* name) -> std::string_view {
    const auto text = headers[name];
    return {text.data(), text.size()};
  };
  return read_trace_place(value);
}

span_log::span_log(const std::string& path) : next_((std::uint64_t{std::random_device()()} << 32) + 1) {
  if (path.empty()) return;
  // Neither open() nor write() waits for the reader of a pipe.
  file_ = detail::descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file_) {
    throw configuration_error("spans cannot be written to " + path + " (" + std::generic_category().message(errno) +
                              "); name a writable file, or a pipe with a reader");
  }
}

void span_log::write(const trace_place& caller, const request_times& times, std::string_view path,
                     std::string_view model, int status) {
  using std::chrono::microseconds;
  const auto now = clock::now();
  const auto wall = std::chrono::system_clock::now();
  const auto new_id = [&] { return detail::hex(mix(next_.fetch_add(1, std::memory_order_relaxed))); };
  std::string text = "[";
  const auto add = [&](const std::string& span_id, const std::string& parent, std::string_view name,
                       clock::time_point start_time, clock::time_point end) {
    const auto timestamp = std::chrono::duration_cast<microseconds>((wall - (now - start_time)).time_since_epoch());
    if (text.size() > 1) text += "},";
    text +=
        "{\"traceId\":\"" + caller.trace + "\",\"parentId\":\"" + parent + "\",\"id\":\"" + span_id + "\",\"name\":";
    append_string(text, name);
    text +=
        ",\"timestamp\":" + std::to_string(timestamp.count()) + ",\"duration\":" +
        std::to_string(std::max<std::int64_t>(1, std::chrono::duration_cast<microseconds>(end - start_time).count()));
    text += ",\"localEndpoint\":{\"serviceName\":\"muster-serve\"}";
  };
  const std::string server_span = new_id();
  add(server_span, caller.span, path, times.received, now);
  text += ",\"kind\":\"SERVER\",\"tags\":{\"http.status_code\":\"" + std::to_string(status) + "\",\"model\":";
  append_string(text, model);
  text += '}';
  constexpr clock::time_point never{};
  if (times.submitted != never) add(new_id(), server_span, "receive", times.received, times.submitted);
  if (times.started != never) add(new_id(), server_span, "queue", times.submitted, times.started);
  if (times.predicted != never) add(new_id(), server_span, "predict", times.started, times.predicted);
  text += "}]\n";
  [[maybe_unused]] const auto written = ::write(file_.get(), text.data(), text.size());
}

}}}  // namespace muster::v0::serve
