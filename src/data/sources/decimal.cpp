#include "decimal.hpp"

#include <algorithm>

namespace muster::inline v0 {
namespace {

// Whether a number that does not fit into a float is below 1, and so too small rather than too large.
bool below_one(const char* first, const char* last) {
  std::int64_t before_point = 0;  // the decimal exponent of the leading digit, plus one
  const char* p = first;
  while (p != last && *p == '0') ++p;
  const char* const leading = p;
  while (p != last && detail::is_digit(*p)) ++p;
  before_point = p - leading;
  if (p != last && *p == '.') {
    const char* const fraction = ++p;
    while (p != last && *p == '0') ++p;
    if (before_point == 0) before_point = fraction - p;
    while (p != last && detail::is_digit(*p)) ++p;
  }
  std::int64_t exponent = 0;
  bool smaller = false;
  if (p != last) {  // an 'e'
    ++p;
    smaller = *p == '-';
    if (*p == '-' || *p == '+') ++p;
    constexpr std::int64_t enough = std::int64_t{1} << 50;  // more than any text has digits
    for (; p != last; ++p) exponent = std::min(enough, exponent * 10 + (*p - '0'));
  }
  return before_point + (smaller ? -exponent : exponent) <= 0;
}

}  // namespace

std::from_chars_result detail::parse_float_exactly(const char* first, const char* last, bool negative,
                                                   float& value) noexcept {
  float magnitude = 0;
  std::from_chars_result result = std::from_chars(first, last, magnitude);
  if (result.ec == std::errc::result_out_of_range && below_one(first, result.ptr)) {
    magnitude = 0;
    result.ec = std::errc();
  }
  if (result.ec == std::errc()) value = negative ? -magnitude : magnitude;
  return result;
}

}  // namespace muster::inline v0
