// Properties of the CSV reader for any input bytes; used by the fuzzer and by test_data.
#pragma once

#include <string_view>
#include <utility>

#include <muster/core/log.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/text_format.hpp>
#include "text.hpp"

namespace fuzz {

/// Suppresses log messages during its lifetime: most texts make the reader guess the format.
struct without_log {
  without_log() {
    muster::set_log_callback([](const muster::log_message&) {});
  }
  ~without_log() { muster::set_log_callback({}); }
};

/// Throws std::logic_error when a property does not hold; returns true if the text was accepted.
inline bool check_csv(std::string_view text) {
  const without_log quiet;
  bool accepted = false;
  for (const char delimiter : {',', ' ', ';'}) {
    const muster::data::csv_options csv{.delimiter = delimiter, .missing = muster::data::missing_values::zero};
    const auto parse = [&](const muster::read_options& options, std::size_t piece_bytes) {
      const auto format = muster::data::detail::format_of_csv(text, "input", csv, options);
      return muster::data::detail::dataset_of_text(text, *format, "input", options, piece_bytes);
    };
    accepted |= check_text(text, [&](std::size_t piece_bytes, int threads, bool keep) {
      return parse({.threads = threads, .keep_bad_records = keep}, piece_bytes);
    });
    const muster::read_options options{.threads = 1, .keep_bad_records = true};
    check_on_demand(
        text, [&] { return parse(options, muster::data::detail::text_piece_bytes); },
        [&](auto file) {
          auto format = muster::data::detail::format_of_csv(file->text(), "input", csv, options);
          return muster::data::detail::records_of_text(std::move(file), std::move(format), "csv:input", options,
                                                       {.piece_bytes = 7, .cache_bytes = 999});
        });
  }
  return accepted;
}

}  // namespace fuzz
