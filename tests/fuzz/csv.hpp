// What must hold for any bytes whatever that are given to the CSV reader; for the fuzzer and for test_data alike.
#pragma once

#include <string_view>

#include <muster/data/sources/csv.hpp>
#include "text.hpp"

namespace fuzz {

/// Throws std::logic_error when something does not hold; returns whether the text was accepted.
inline bool check_csv(std::string_view text) {
  bool accepted = false;
  for (const char delimiter : {',', ' ', ';'}) {
    const muster::csv_options csv{.delimiter = delimiter, .missing = muster::missing_values::zero};
    accepted |= check_text(text, [&](std::size_t piece_bytes, int threads, bool keep) {
      return muster::detail::parse_csv(text, "input", "input", csv, {.threads = threads, .keep_bad_records = keep},
                                       piece_bytes);
    });
  }
  return accepted;
}

}  // namespace fuzz
