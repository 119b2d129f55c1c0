// Parsers and formats of numbers on command lines, in variables and in specifications.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

/// Parses the complete `text` as a decimal number of type T. Returns nothing if the text is not a number, does not fit,
/// has a '+', spaces or leading zeros (which would mean base 8 elsewhere), or is not finite.
template <class T>
[[nodiscard]] std::optional<T> parse_number(std::string_view text) noexcept {
  const auto digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') return std::nullopt;
  T value{};
  const char* const last = text.data() + text.size();
  const auto [end, code] = std::from_chars(text.data(), last, value);
  if (code != std::errc() || end != last) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (value - value != 0) return std::nullopt;  // infinite or NaN
  }
  return value;
}

/// Parses a number with an optional unit of powers of 1024: "512", "4k", "4Ki", "4KiB", "4kb"; also m, g and t.
[[nodiscard]] inline std::optional<std::uint64_t> parse_size(std::string_view text) noexcept {
  auto end = text.find_first_not_of("0123456789");
  if (end == std::string_view::npos) end = text.size();
  const auto value = parse_number<std::uint64_t>(text.substr(0, end));
  if (!value || end == text.size()) return value;
  const auto letter = std::string_view("kKmMgGtT").find(text[end]);
  const auto rest = text.substr(end + 1);
  const bool is_unit = rest.empty() || rest == "i" || rest == "b" || rest == "B" || rest == "ib" || rest == "iB";
  if (letter == std::string_view::npos || !is_unit) return std::nullopt;
  const auto shift = 10 * (letter / 2 + 1);
  if (*value > (~std::uint64_t{0} >> shift)) return std::nullopt;
  return *value << shift;
}

/// Returns a number as text: "4096", "0.001".
template <class T>
[[nodiscard]] std::string number_text(T value) {
  if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    char text[400];  // the largest double has 309 digits
    return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr};
  }
}

/// The range of valid numbers for a flag or a variable: from `low` to `high`, both included.
template <class T>
struct number_range {
  T low{};
  T high{};
  bool is_size = false;  ///< a number of bytes (T is std::uint64_t), which parse_size reads
};

/// Returns a range as text: "1 to 4096".
template <class T>
[[nodiscard]] std::string to_string(const number_range<T>& limits) {
  return number_text(limits.low) + " to " + number_text(limits.high);
}

/// Parses `text` as a number in `limits`. Throws configuration_error that names `name`, the flag or variable.
template <class T>
[[nodiscard]] T number_from(std::string_view name, std::string_view text, const number_range<T>& limits) {
  constexpr bool is_integer = std::is_integral_v<T>;
  auto number = parse_number<T>(text);
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (limits.is_size) number = parse_size(text);
  }
  if (number && *number >= limits.low && *number <= limits.high) return *number;
  throw configuration_error(std::string(name) + " cannot be '" + std::string(text) + "' (it is a " +
                            (limits.is_size ? "size"
                             : is_integer   ? "whole number"
                                            : "number") +
                            " from " + to_string(limits) + (limits.is_size ? " bytes" : "") +
                            "); give a number in that range, in decimal digits without leading zeros" +
                            (limits.is_size ? ", such as 65536 or 64KiB" : ""));
}

/// Adds a flag for a number to `app`, a CLI::App of CLI11. The value of the flag is stored in `variable`. --help shows
/// the range, and the initial value of `variable` as the default, unless that value is outside the range (which means
/// "not given").
template <class App, class T>
auto* add_number(App& app, const std::string& flag, T& variable, const number_range<std::type_identity_t<T>>& limits,
                 const std::string& help) {
  auto* const option = app.template add_option_function<std::string>(
      flag, [flag, &variable, limits](const std::string& text) { variable = number_from(flag, text, limits); },
      help + " (" + to_string(limits) + ")");
  option->type_name(limits.is_size ? "BYTES" : std::is_integral_v<T> ? "N" : "X");
  if (variable >= limits.low && variable <= limits.high) option->default_str(number_text(variable));
  return option;
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
