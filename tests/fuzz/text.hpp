// Properties of every text reader for any input bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace fuzz {

inline void require(bool holds, const char* property) {
  if (!holds) throw std::logic_error(property);
}

inline void check_rejection(const muster::data_error& rejected, std::string_view text) {
  require(rejected.file() == "input", "the rejection names another file");
  const std::string_view reason = rejected.what();
  require(reason.starts_with("input:"), "the text of the rejection does not begin with the file");
  require(reason.find_first_of("\r\n") == std::string_view::npos, "the text of the rejection has several lines");
  require(reason.size() < 300, "the text of the rejection is long");
  const auto& where = rejected.where();
  if (where.line == 0) return;  // the error concerns the whole file
  // A table may end its lines with carriage returns only.
  const char end = where.line > 1 && text.find('\n') == std::string_view::npos ? '\r' : '\n';
  for (std::uint64_t line = 1; line < where.line; ++line) {
    const auto newline = text.find(end);
    require(newline != std::string_view::npos, "the rejection names a line outside the text");
    text.remove_prefix(newline + 1);
  }
  const auto length = std::min(text.find(end), text.size());
  require(where.column >= 1 && where.column <= length + 1, "the rejection names a column outside the line");
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

/// The content of a record: its bytes, its label, and a flag for bad records.
struct read_record {
  std::vector<std::byte> bytes;
  float label = 0;
  bool bad = false;
  friend bool operator==(const read_record&, const read_record&) = default;
};

inline read_record read_one(const muster::data::any_record_source& source, muster::sample_id id) {
  read_record record;
  std::uint64_t size = 0;
  source.sizes({&id, 1}, {&size, 1});
  record.bytes.resize(size);
  std::vector<muster::bad_record> bad;
  source.read({&id, 1}, {record.bytes, {&record.label, 1}}, &bad);
  record.bad = !bad.empty();
  return record;
}

/// Reads records of the text as open(text) parses it on demand, and compares them with the records in memory from
/// parse().
template <class Parse, class Open>
void check_on_demand(std::string_view text, const Parse& parse, const Open& open) {
  std::optional<muster::data::any_record_source> whole, parts;
  try {
    whole.emplace(parse());
  } catch (const muster::data_error&) {
  }
  try {
    parts.emplace(open(std::make_shared<const muster::data::mapped_file>(std::vector<char>(text.begin(), text.end()))));
  } catch (const muster::data_error& rejected) {
    check_rejection(rejected, text);
  }
  require(whole.has_value() == parts.has_value(), "text on demand and text in memory are not both accepted");
  if (!whole) return;
  require(whole->schema() == parts->schema() && whole->size() == parts->size(), "text on demand is other data");
  for (muster::sample_id id = 0; id < whole->size(); ++id)
    require(read_one(*whole, id) == read_one(*parts, id), "a record on demand differs");
}

/// Parses the text whole and in small pieces, by parse(piece_bytes, threads, keep_bad_records), and compares. Throws
/// std::logic_error when a property does not hold; returns true if the text was accepted.
template <class Parse>
bool check_text(std::string_view text, const Parse& parse) {
  constexpr std::size_t whole = std::size_t{1} << 20;
  std::string errors[2];
  std::uint64_t digests[4] = {};
  for (const int pieces : {0, 1, 2, 3}) {
    const bool keep = pieces >= 2;
    try {
      const muster::dataset read = parse(pieces % 2 == 0 ? whole : 7, 1, keep);
      check_dataset(read, text);
      digests[pieces] = read.digest();
      require(keep || read.bad().empty(), "there are bad records although they should not be kept");
      for (const auto& bad : read.bad()) {
        require(bad.id < read.size(), "a bad record has an unknown id");
        check_rejection(muster::data_error(bad.location, bad.problem), text);
      }
      if (!keep) continue;
      require(errors[0].empty() == read.bad().empty(),
              "bad records are kept without an error, or are not kept after an error");
      if (!errors[0].empty()) {
        const muster::data_error first(read.bad().front().location, read.bad().front().problem);
        require(errors[0] == first.what(), "the first bad record is not the error");
      }
    } catch (const muster::data_error& rejected) {
      check_rejection(rejected, text);
      if (!keep) errors[pieces] = rejected.what();
      require(!keep || !errors[0].empty(), "keeping bad records rejects text that is accepted otherwise");
    }
  }
  require(errors[0] == errors[1], "the rejection depends on the pieces");
  require(digests[0] == digests[1] && digests[2] == digests[3], "the result depends on the pieces");
  return errors[0].empty();
}

}  // namespace fuzz
