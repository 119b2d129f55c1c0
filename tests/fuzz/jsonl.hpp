// Properties of the reader of JSON lines for any input bytes; used by the fuzzer and by test_data.
#pragma once

#include <string_view>
#include <utility>

#include <muster/data/sources/jsonl.hpp>
#include <muster/data/sources/text_format.hpp>
#include "text.hpp"

namespace fuzz {

/// Throws std::logic_error when a property does not hold; returns true if the text was accepted.
inline bool check_jsonl(std::string_view text) {
  const muster::data::jsonl_options jsonl{
      .ignore = {"z"}, .missing = muster::data::missing_values::zero, .classes = {}};
  const auto parse = [&](const muster::read_options& options, std::size_t piece_bytes) {
    const auto format = muster::data::detail::format_of_jsonl(text, "input", jsonl, options);
    return muster::data::detail::dataset_of_text(text, *format, "input", options, piece_bytes);
  };
  const bool accepted = check_text(text, [&](std::size_t piece_bytes, int threads, bool keep) {
    try {
      return parse({.threads = threads, .keep_bad_records = keep}, piece_bytes);
    } catch (const muster::configuration_error& refused) {  // every key is ignored
      throw muster::data_error({"input"}, refused.what());
    }
  });
  const muster::read_options options{.threads = 1, .keep_bad_records = true};
  try {
    check_on_demand(
        text, [&] { return parse(options, muster::data::detail::text_piece_bytes); },
        [&](auto file) {
          auto format = muster::data::detail::format_of_jsonl(file->text(), "input", jsonl, options);
          return muster::data::detail::records_of_text(std::move(file), std::move(format), "jsonl:input", options,
                                                       {.piece_bytes = 7, .cache_bytes = 999});
        });
  } catch (const muster::configuration_error&) {
  }
  return accepted;
}

}  // namespace fuzz
