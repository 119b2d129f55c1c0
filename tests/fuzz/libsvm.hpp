// What must hold for any bytes whatever that are given to the LIBSVM reader; for the fuzzer and for test_data alike.
#pragma once

#include <string_view>

#include <muster/data/sources/libsvm.hpp>
#include "text.hpp"

namespace fuzz {

/// Throws std::logic_error when something does not hold; returns whether the text was accepted.
inline bool check_libsvm(std::string_view text) {
  return check_text(text, [&](std::size_t piece_bytes, int threads, bool keep) {
    return muster::detail::parse_libsvm(text, "input", "input", {.threads = threads, .keep_bad_records = keep},
                                        piece_bytes);
  });
}

}  // namespace fuzz
