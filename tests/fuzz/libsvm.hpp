// What must hold for any bytes whatever that are given to the LIBSVM reader; for the fuzzer and for test_data alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <muster/core/error.hpp>
#include <muster/data/libsvm.hpp>

namespace fuzz {

inline void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

inline void check_rejection(const muster::data_error& rejected, std::string_view text) {
  require(rejected.file() == "input", "the rejection names another file");
  const std::string_view what = rejected.what();
  require(what.starts_with("input:"), "the text of the rejection does not begin with the file");
  require(what.find_first_of("\r\n") == std::string_view::npos, "the text of the rejection has several lines");
  require(what.size() < 300, "the text of the rejection is long");
  const auto& where = rejected.where();
  if (where.line == 0) return;  // about the file as a whole
  for (std::uint64_t line = 1; line < where.line; ++line) {
    const auto newline = text.find('\n');
    require(newline != std::string_view::npos, "the rejection names a line that is not there");
    text.remove_prefix(newline + 1);
  }
  const auto length = std::min(text.find('\n'), text.size());
  require(where.column >= 1 && where.column <= length + 1, "the rejection names a column that is not there");
}

inline void check_dataset(const muster::dataset& read, std::string_view text) {
  require(read.size() >= 1 && read.size() <= text.size(), "there are more samples than bytes, or none");
  require(read.features() >= 1, "there are no features");
  for (std::size_t i = 0; i < read.size(); ++i) {
    require(std::isfinite(read.label(i)), "a label is not finite");
    const auto values = read.is_sparse() ? read.sparse(i).values : read.row(i);
    for (const float value : values) require(std::isfinite(value), "a value is not finite");
  }
}

/// Throws std::logic_error when something does not hold; returns whether the text was accepted.
inline bool check_libsvm(std::string_view text) {
  constexpr std::size_t whole = std::size_t{1} << 20;
  std::string told[2];
  std::uint64_t digests[2] = {};
  for (const int pieces : {0, 1}) {
    try {
      const muster::dataset read =
          muster::detail::parse_libsvm(text, "input", "input", {.threads = 1 + pieces}, pieces == 0 ? whole : 7);
      check_dataset(read, text);
      digests[pieces] = read.digest();
    } catch (const muster::data_error& rejected) {
      check_rejection(rejected, text);
      told[pieces] = rejected.what();
    }
  }
  require(told[0] == told[1], "the rejection depends on the pieces");
  require(digests[0] == digests[1], "the result depends on the pieces");
  return told[0].empty();
}

}  // namespace fuzz
