// Distributed tracing: reads the caller's trace from a request's headers, and writes the spans of the request.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/beast/http/fields.hpp>

#include <muster/core/clock.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/trace_context.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// Reads the trace from W3C's traceparent, or else from b3, or else from X-B3-TraceId and related headers. Returns
/// nothing if the headers are malformed or absent, or if the trace is not recorded.
[[nodiscard]] std::optional<trace_place> read_trace(const boost::beast::http::fields& headers);

/// The times of a request's steps. A step that did not happen has the time zero of the clock.
struct request_times {
  clock::time_point received{};   ///< arrival of the first byte
  clock::time_point submitted{};  ///< arrival in the queue of the model
  clock::time_point started{};    ///< start of the request's batch
  clock::time_point predicted{};  ///< end of the request's batch
};

/// A file to which spans are appended. Each line has the spans of a request, as an array in Zipkin's format (POST
/// /api/v2/spans). Spans that cannot be written without waiting are dropped. Thread safe.
class span_log {
 public:
  /// Opens the file. An empty path disables the log. Throws configuration_error if the file cannot be written.
  explicit span_log(const std::string& path);

  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(file_); }
  /// Writes the spans of a request that ends now.
  void write(const trace_place& caller, const request_times& times, std::string_view path, std::string_view model,
             int status);

 private:
  detail::descriptor file_;
  std::atomic<std::uint64_t> next_;
};

}}}  // namespace muster::v0::serve
