// Properties of the LIBSVM reader for any input bytes; used by the fuzzer and by test_data.
#pragma once

#include <string_view>
#include <utility>

#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/text_format.hpp>
#include "text.hpp"

namespace fuzz {

/// Throws std::logic_error when a property does not hold; returns true if the text was accepted.
inline bool check_libsvm(std::string_view text) {
  const auto parse = [&](const muster::read_options& options, std::size_t piece_bytes) {
    const auto format = muster::data::detail::format_of_libsvm("input", options);
    return muster::data::detail::dataset_of_text(text, *format, "input", options, piece_bytes);
  };
  const muster::read_options options{.threads = 1, .keep_bad_records = true};
  check_on_demand(
      text, [&] { return parse(options, muster::data::detail::text_piece_bytes); },
      [&](auto file) {
        return muster::data::detail::records_of_text(std::move(file),
                                                     muster::data::detail::format_of_libsvm("input", options),
                                                     "libsvm:input", options, {.piece_bytes = 7, .cache_bytes = 999});
      });
  return check_text(text, [&](std::size_t piece_bytes, int threads, bool keep) {
    return parse({.threads = threads, .keep_bad_records = keep}, piece_bytes);
  });
}

}  // namespace fuzz
