#pragma once

#include <muster/data/sources/decimal.hpp>

#include <locale.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

#if defined(__x86_64__)

// Does the work of parse_float() for most numbers on 16 characters at once. A mask has a bit for each character that is
// not part of a number. The first bit of the mask is the end of the number, so the begin of the next number does not
// depend on a branch (signs and lengths are random). Then the digits are shifted to the right end, over the point, and
// combined in pairs (Langdale and Lemire 2019, https://doi.org/10.1007/s00778-019-00578-5).
[[gnu::target("avx2,bmi")]] inline std::from_chars_result parse_float_wide(const char* first, const char* last,
                                                                           float& value) noexcept {
  constexpr int lanes = 16;
  if (last - first <= lanes) return detail::parse_float(first, last, value);
  const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i weights = _mm_sub_epi8(text, _mm_set1_epi8('0'));
  const __m128i digits = _mm_cmpeq_epi8(_mm_min_epu8(weights, _mm_set1_epi8(9)), weights);
  const __m128i points = _mm_cmpeq_epi8(text, _mm_set1_epi8('.'));
  const unsigned non_number = static_cast<unsigned>(_mm_movemask_epi8(_mm_or_si128(digits, points))) ^ 0xffffU;
  const unsigned sign = non_number & 1U;
  const auto end = static_cast<int>(_tzcnt_u32(non_number & ~1U));  // 32: the end is not within the 16 characters
  const unsigned point_bits = static_cast<unsigned>(_mm_movemask_epi8(points)) & _blsmsk_u32(non_number & ~1U);
  const auto pointed = static_cast<int>(point_bits != 0);
  const auto point = static_cast<int>(_tzcnt_u32(point_bits | 1U << lanes));
  const bool negative = *first == '-';
  // This branch is taken only for rare numbers.
  if (sign != static_cast<unsigned>(negative) + static_cast<unsigned>(*first == '+') || end > lanes ||
      end <= static_cast<int>(sign) + pointed || _blsr_u32(point_bits) != 0 || (first[end] | 0x20) == 'e') {
    return detail::parse_float(first, last, value);
  }
  __m128i source_index =
      _mm_add_epi8(_mm_setr_epi8(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1),
                   _mm_set1_epi8(static_cast<char>(end)));
  const __m128i behind_point = _mm_cmpgt_epi8(source_index, _mm_set1_epi8(static_cast<char>(point)));
  source_index = _mm_sub_epi8(source_index, _mm_andnot_si128(behind_point, _mm_set1_epi8(static_cast<char>(pointed))));
  // A negative source index yields zero.
  const __m128i ones = _mm_shuffle_epi8(_mm_and_si128(weights, digits), source_index);
  const __m128i pairs = _mm_maddubs_epi16(ones, _mm_set1_epi16(0x010a));
  const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(0x00010064));
  const __m128i eights = _mm_madd_epi16(_mm_packus_epi32(fours, fours), _mm_set1_epi32(0x00012710));
  const __m128d halves = _mm_mul_pd(_mm_cvtepi32_pd(eights), _mm_setr_pd(1e8, 1));  // exact: at most 15 digits
  const double mantissa = _mm_cvtsd_f64(_mm_add_sd(halves, _mm_unpackhi_pd(halves, halves)));
  return detail::float_of(mantissa, pointed != 0 ? point + 1 - end : 0, negative,
                          {first + sign, static_cast<std::size_t>(last - first) - sign}, first + end, value);
}

#endif

// A decimal number as digits without zeros at both ends, and the first digit's power of ten.
struct decimal_digits {
  std::string digits = {};
  std::int64_t power = 0;

  explicit decimal_digits(std::string_view number) {
    const auto mark = std::min(number.find_first_of("eE"), number.size());
    const auto point = std::min(number.find('.'), mark);
    for (std::size_t at = 0; at < mark; ++at) {
      if (!detail::is_digit(number[at]) || (digits.empty() && number[at] == '0')) continue;
      if (digits.empty())
        power = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(at) - (at < point ? 1 : 0);
      digits += number[at];
    }
    digits.erase(digits.find_last_not_of('0') + 1);
    std::int64_t exponent = 0;
    number.remove_prefix(std::min(mark + 1, number.size()));
    if (number.starts_with('+')) number.remove_prefix(1);
    (void)std::from_chars(number.data(), number.data() + number.size(), exponent);
    if (!digits.empty() && std::abs(exponent) < std::numeric_limits<std::int32_t>::max()) power += exponent;
  }
  friend bool operator==(const decimal_digits&, const decimal_digits&) = default;
};

}  // namespace detail

inline bool detail::is_exact_label(std::string_view written, float value) {
  constexpr std::ptrdiff_t few_digits = 7;  // a float32 represents every whole number with so many digits
  if (value != std::trunc(value)) return true;
  const char* const end = written.data() + written.size();
  const char* const first = written.data() + (written.starts_with('-') || written.starts_with('+') ? 1 : 0);
  const char* p = std::find_if_not(first, end, is_digit);
  if (p - first <= few_digits) {
    if (p != end && *p == '.') p = std::find_if(p + 1, end, [](char c) { return c != '0'; });
    if (p == end) return true;
  }
  char exact[64];
  const auto written_end =
      std::to_chars(std::begin(exact), std::end(exact), std::abs(value), std::chars_format::fixed, 0);
  return detail::decimal_digits(written) ==
         detail::decimal_digits({exact, static_cast<std::size_t>(written_end.ptr - exact)});
}

inline std::from_chars_result detail::parse_float_exactly(const char* first, const char* last, bool negative,
                                                          float& value) noexcept {
  float magnitude = 0;
  std::from_chars_result result = std::from_chars(first, last, magnitude);
  if (result.ec == std::errc::result_out_of_range) {  // from_chars has one code for too large and too small
    static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
    magnitude = ::strtof_l(std::string(first, result.ptr).c_str(), nullptr, c_locale);
    if (magnitude < 1) result.ec = std::errc();
  }
  if (result.ec == std::errc()) value = negative ? -magnitude : magnitude;
  return result;
}

inline detail::float_parser detail::fastest_float_parser() noexcept {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0;
  if (wide) return detail::parse_float_wide;
#endif
  return [](const char* first, const char* last, float& value) noexcept { return parse_float(first, last, value); };
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
