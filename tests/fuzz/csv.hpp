// What must hold for any bytes whatever that are given to the CSV reader; for the fuzzer and for test_data alike.
#pragma once

#include <string_view>
#include <utility>

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
    const muster::read_options options{.threads = 1, .keep_bad_records = true};
    check_on_demand(
        text, [&] { return muster::detail::parse_csv(text, "input", "input", csv, options, 1 << 20); },
        [&](auto file) {
          return muster::detail::csv_records(std::move(file), "input", csv, options,
                                             {.piece_bytes = 7, .cache_bytes = 999});
        });
  }
  return accepted;
}

}  // namespace fuzz
