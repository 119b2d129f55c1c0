// The position of a call in a trace, from its HTTP headers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// The position of a call in a trace, as lower-case hexadecimal digits.
struct trace_place {
  std::string trace;  ///< 16 or 32 digits
  std::string span;   ///< span of the caller; 16 digits
};

namespace detail {

inline bool is_trace_identity(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         text.find_first_not_of('0') != std::string_view::npos;
}

inline std::optional<trace_place> trace_place_of(std::string_view trace, std::string_view span) {
  if ((!is_trace_identity(trace, 32) && !is_trace_identity(trace, 16)) || !is_trace_identity(span, 16))
    return std::nullopt;
  return trace_place{std::string(trace), std::string(span)};
}

// Parses VERSION-TRACE-SPAN-FLAGS. Later versions may append fields after the flags.
inline std::optional<trace_place> read_w3c(std::string_view text) {
  const bool is_whole = text.size() == 55 || (text.size() > 55 && text[55] == '-' && !text.starts_with("00"));
  if (!is_whole || text.starts_with("ff") || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  constexpr std::string_view odd = "13579bdf";
  if (odd.find(text[54]) == std::string_view::npos) return std::nullopt;  // the flag for a recorded trace
  const auto trace = text.substr(3, 32);
  return is_trace_identity(trace, 32) ? trace_place_of(trace, text.substr(36, 16)) : std::nullopt;
}

// Parses TRACE-SPAN, TRACE-SPAN-SAMPLED or TRACE-SPAN-SAMPLED-PARENT. A trace without a sampling decision is recorded.
inline std::optional<trace_place> read_b3(std::string_view text) {
  const auto next = [&text] {
    const auto part = text.substr(0, text.find('-'));
    text.remove_prefix(part.size() < text.size() ? part.size() + 1 : text.size());
    return part;
  };
  const auto trace = next(), span = next();
  return text.starts_with('0') ? std::nullopt : trace_place_of(trace, span);
}

}  // namespace detail

/// Reads the position from W3C's traceparent, else from b3, else from x-b3-traceid and the related headers. Returns
/// nothing if these are malformed or absent, or if the trace is not recorded. `value(name)` returns the header with
/// that lower-case name; empty if absent.
template <class Value>
[[nodiscard]] std::optional<trace_place> read_trace_place(Value value) {
  if (const std::string_view text = value("traceparent"); !text.empty()) return detail::read_w3c(text);
  if (const std::string_view text = value("b3"); !text.empty()) return detail::read_b3(text);
  const std::string_view sampled = value("x-b3-sampled");
  if (sampled == "0" || sampled == "false") return std::nullopt;
  return detail::trace_place_of(value("x-b3-traceid"), value("x-b3-spanid"));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
