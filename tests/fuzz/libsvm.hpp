// What must hold for any bytes whatever that are given to the LIBSVM reader; for the fuzzer and for test_data alike.
#pragma once

#include <string_view>
#include <utility>

#include <muster/data/sources/libsvm.hpp>
#include "text.hpp"

namespace fuzz {

/// Throws std::logic_error when something does not hold; returns whether the text was accepted.
inline bool check_libsvm(std::string_view text) {
  const muster::read_options options{.threads = 1, .keep_bad_records = true};
  check_on_demand(
      text, [&] { return muster::detail::parse_libsvm(text, "input", "input", options, 1 << 20); },
      [&](auto file) {
        return muster::detail::libsvm_records(std::move(file), "input", options,
                                              {.piece_bytes = 7, .cache_bytes = 999});
      });
  return check_text(text, [&](std::size_t piece_bytes, int threads, bool keep) {
    return muster::detail::parse_libsvm(text, "input", "input", {.threads = threads, .keep_bad_records = keep},
                                        piece_bytes);
  });
}

}  // namespace fuzz
