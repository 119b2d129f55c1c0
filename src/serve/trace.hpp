// Requests that belong to a trace of their caller: what its headers say, and a report of where their time went.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/beast/http/fields.hpp>

#include <muster/core/clock.hpp>
#include <muster/core/trace_context.hpp>
#include "../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace serve {

/// Of W3C's traceparent, else of b3, else of X-B3-TraceId and the like; nothing if these are malformed, absent, or say
/// that the trace is not recorded.
[[nodiscard]] std::optional<trace_place> read_trace(const boost::beast::http::fields& headers);

/// When what was done for a request; never: a time of the clock's epoch.
struct request_times {
  clock::time_point received{};   ///< its first byte
  clock::time_point submitted{};  ///< to the queue of its model
  clock::time_point begun{};      ///< its batch
  clock::time_point predicted{};
};

/// A file that spans are appended to: a line for each request, the array of its spans that Zipkin takes
/// (POST /api/v2/spans). Thread safe. What cannot be written is lost.
class span_log {
 public:
  /// No file: nothing is written. Throws configuration_error for a file that cannot be written.
  explicit span_log(const std::string& path);

  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(file_); }
  /// Of a request that ends now.
  void write(const trace_place& caller, const request_times& times, std::string_view target, std::string_view model,
             int status);

 private:
  detail::descriptor file_;
  std::atomic<std::uint64_t> next_;
};

}}}  // namespace muster::v0::serve
