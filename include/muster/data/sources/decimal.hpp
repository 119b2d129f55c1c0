// Fast conversion of decimal text to float. The results are equal bit for bit to the results of std::from_chars.
#pragma once

#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

[[nodiscard]] inline bool is_digit(char c) noexcept { return static_cast<unsigned char>(c - '0') < 10; }

/// The powers of ten up to 10^8.
inline constexpr std::array<std::uint64_t, 9> small_powers_of_ten = {1,      10,      100,      1000,     10000,
                                                                     100000, 1000000, 10000000, 100000000};

/// Appends the digits at `first` to `number`, which wraps on overflow. Returns the end of the digits.
inline const char* append_digits(const char* first, const char* last, std::uint64_t& number) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    // Converts eight characters at once (Langdale and Lemire 2019, https://doi.org/10.1007/s00778-019-00578-5), also
    // when fewer than eight are digits. The number of digits is counted, and only rare lengths have branches, because a
    // loop over digits mispredicts at nearly every number if the lengths vary.
    while (last - first >= 8) {
      std::uint64_t word;
      std::memcpy(&word, first, sizeof word);
      const std::uint64_t above = word + 0x4646464646464646ULL;  // a carry into the upper half: more than '9'
      word -= 0x3030303030303030ULL;                             // a borrow into the upper half: less than '0'
      // Correct up to the first character that is not a digit.
      const std::uint64_t non_digits = (above | word) & 0x8080808080808080ULL;
      const int digits = non_digits == 0 ? 8 : std::countr_zero(non_digits) / 8;
      // Shifts the digits, so that zeros in front replace the characters after the digits.
      if (digits != 8) word = word << (56 - 8 * digits) << 8;
      word = word * 10 + (word >> 8);
      number = number * small_powers_of_ten[static_cast<std::size_t>(digits)] +
               (((word & 0x000000ff000000ffULL) * 0x000f424000000064ULL +
                 ((word >> 16) & 0x000000ff000000ffULL) * 0x0000271000000001ULL) >>
                32);
      first += digits;
      if (digits != 8) return first;
    }
  }
  while (first != last && is_digit(*first)) number = number * 10 + static_cast<std::uint64_t>(*first++ - '0');
  return first;
}

/// The powers 10^-57 to 10^38, each rounded to the nearest double.
inline constexpr int least_power = -57;
inline constexpr std::array<double, 96> powers_of_ten = {
    1e-57, 1e-56, 1e-55, 1e-54, 1e-53, 1e-52, 1e-51, 1e-50, 1e-49, 1e-48, 1e-47, 1e-46, 1e-45, 1e-44, 1e-43, 1e-42,
    1e-41, 1e-40, 1e-39, 1e-38, 1e-37, 1e-36, 1e-35, 1e-34, 1e-33, 1e-32, 1e-31, 1e-30, 1e-29, 1e-28, 1e-27, 1e-26,
    1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10,
    1e-9,  1e-8,  1e-7,  1e-6,  1e-5,  1e-4,  1e-3,  1e-2,  1e-1,  1e0,   1e1,   1e2,   1e3,   1e4,   1e5,   1e6,
    1e7,   1e8,   1e9,   1e10,  1e11,  1e12,  1e13,  1e14,  1e15,  1e16,  1e17,  1e18,  1e19,  1e20,  1e21,  1e22,
    1e23,  1e24,  1e25,  1e26,  1e27,  1e28,  1e29,  1e30,  1e31,  1e32,  1e33,  1e34,  1e35,  1e36,  1e37,  1e38};

/// Does the work of parse_float() for the few numbers that its fast path cannot decide. `first` is the position after
/// the sign.
std::from_chars_result parse_float_exactly(const char* first, const char* last, bool negative, float& value) noexcept;

/// Converts mantissa * 10^exponent to the nearest float, for a mantissa with at most 18 digits. The number is written
/// at the beginning of `text` and ends at `end`.
inline std::from_chars_result float_of(double mantissa, std::int64_t exponent, bool negative, std::string_view text,
                                       const char* end, float& value) noexcept {
  // Extends an idea of Clinger (1990, https://doi.org/10.1145/93542.93557): mantissa * 10^exponent in double has three
  // roundings, so the product differs from the exact number by at most three units in the last place. At the boundary
  // between two floats, the 29 bits that a float lacks are 100..0. Unless the boundary is within that distance, the
  // product and the exact number round to the same float.
  constexpr std::uint64_t reach = 4;
  constexpr auto least = std::bit_cast<std::uint64_t>(double{std::numeric_limits<float>::min()});
  constexpr auto most = std::bit_cast<std::uint64_t>(double{std::numeric_limits<float>::max()});
  if (exponent >= least_power && exponent < least_power + static_cast<int>(powers_of_ten.size())) {
    const double product = mantissa * powers_of_ten[static_cast<std::size_t>(exponent - least_power)];
    // The bits have the order of the products, because no product is negative.
    const auto bits = std::bit_cast<std::uint64_t>(product);
    const std::uint64_t tail = bits & 0x1fffffffULL;
    if ((bits - least <= most - least && tail - (0x10000000ULL - reach) > 2 * reach) || mantissa == 0) {
      const auto magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(product));
      value = std::bit_cast<float>(magnitude | static_cast<std::uint32_t>(negative) << 31);
      return {end, std::errc()};
    }
  }
  return parse_float_exactly(text.data(), text.data() + text.size(), negative, value);
}

/// Reads the decimal number at `first` as std::from_chars<float>(first, last, value) does, with three differences:
/// accepts a leading '+', refuses "inf" and "nan", and reads a number that is too small for a float as zero with the
/// number's sign. Returns the end of the number. The error is std::errc::invalid_argument if there is no number (`ptr`
/// is `first` then) or std::errc::result_out_of_range if the number is too large.
inline std::from_chars_result parse_float(const char* first, const char* last, float& value) noexcept {
  if (first == last) return {first, std::errc::invalid_argument};
  // Signs are random, so a branch on the sign would often mispredict.
  const bool negative = *first == '-';
  const char* p = first + (static_cast<int>(negative) | static_cast<int>(*first == '+'));
  const char* const unsigned_part = p;

  std::uint64_t mantissa = 0;
  if (last - p > 1 && p[1] == '.' && is_digit(*p)) {  // fast path: most numbers begin with a single digit
    mantissa = static_cast<std::uint64_t>(*p++ - '0');
  } else {
    p = append_digits(p, last, mantissa);
  }
  auto digits = p - unsigned_part;
  std::int64_t exponent = 0;
  if (p != last && *p == '.') {
    const char* const point = p;
    p = append_digits(point + 1, last, mantissa);
    exponent = point + 1 - p;
    digits -= exponent;
    if (digits == 0) return {first, std::errc::invalid_argument};
  } else if (digits == 0) {
    return {first, std::errc::invalid_argument};
  }
  if (p != last && (*p == 'e' || *p == 'E')) {
    const char* q = p + 1;
    const bool smaller = q != last && *q == '-';
    if (q != last && (*q == '-' || *q == '+')) ++q;
    std::uint64_t written = 0;
    const char* const end = append_digits(q, last, written);
    if (end - q > 4) return parse_float_exactly(unsigned_part, last, negative, value);
    if (end != q) {  // otherwise the number ends before the 'e'
      exponent += smaller ? -static_cast<std::int64_t>(written) : static_cast<std::int64_t>(written);
      p = end;
    }
  }

  if (digits > 18) return parse_float_exactly(unsigned_part, last, negative, value);
  return float_of(static_cast<double>(static_cast<std::int64_t>(mantissa)), exponent, negative, {unsigned_part, last},
                  p, value);
}

/// Returns true if `parsed_value`, which parse_float() has read from `text`, can be a label. A whole number must be
/// exactly the number in the text. A fraction may be rounded. See label_of().
[[nodiscard]] bool is_exact_label(std::string_view text, float parsed_value);

/// A function with the contract of parse_float().
using float_parser = std::from_chars_result (*)(const char* first, const char* last, float& value) noexcept;
/// Returns the fastest implementation of parse_float() on this machine, for text with many numbers.
[[nodiscard]] float_parser fastest_float_parser() noexcept;

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>

#include <muster/data/sources/detail/decimal-inl.hpp>
