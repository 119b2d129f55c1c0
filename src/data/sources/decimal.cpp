#include "decimal.hpp"

#include <locale.h>
#include <stdlib.h>

#include <string>

namespace muster::inline v0 {

std::from_chars_result detail::parse_float_exactly(const char* first, const char* last, bool negative,
                                                   float& value) noexcept {
  float magnitude = 0;
  std::from_chars_result result = std::from_chars(first, last, magnitude);
  if (result.ec == std::errc::result_out_of_range) {  // too large, or too small, which from_chars does not tell
    static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
    magnitude = ::strtof_l(std::string(first, result.ptr).c_str(), nullptr, plain);
    if (magnitude < 1) result.ec = std::errc();
  }
  if (result.ec == std::errc()) value = negative ? -magnitude : magnitude;
  return result;
}

}  // namespace muster::inline v0
