#pragma once

#include <muster/data/sources/libsvm.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/libsvm_line.hpp>
#include <muster/data/sources/text_format.hpp>

// Bad lines have no entries. If bad lines are kept, the survey parses each line to find the bad lines.

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail::libsvm {

// Returns the last index of a line, which is the largest because indices ascend. A word that is not an index counts as
// 0.
inline std::uint64_t last_index(line_of_text line) {
  const char* p = line.end;
  while (p != line.begin && p[-1] != ':') --p;
  if (p == line.begin) return 0;
  const char* const colon = p - 1;
  p = colon;
  while (p != line.begin && detail::is_digit(p[-1])) --p;
  std::uint64_t index = 0;
  for (; p != colon && index <= largest_index; ++p) index = index * 10 + static_cast<std::uint64_t>(*p - '0');
  return index <= largest_index ? index : 0;
}

// Reads a number with one digit, the most frequent form of a label. Returns the number's end, or null for another
// number.
inline const char* read_digit(const char* p, float& value) {
  const bool negative = *p == '-';
  p += static_cast<int>(negative) | static_cast<int>(*p == '+');  // no branch, because signs are random
  if (!detail::is_digit(*p) || !ends_word(p + 1)) return nullptr;
  value = std::copysign(static_cast<float>(*p - '0'), negative ? -1.0f : 1.0f) + 0.0f;  // -0 is 0
  return p + 1;
}

// Parses the line whose label is at `at`, and sets `at` to the end of the line. Calls store(index from 0, value) for
// each feature in order, and returns `store`. Not inlined, so that all registers are available to the loop.
template <class Store>
[[gnu::noinline]] Store parse_line(const char*& at, const line_place& line, detail::float_parser parse_float,
                                   float& label, Store store) {
  const char* const text_end = line.rest.data() + line.rest.size();
  const char* p = at;
  const char* after = read_digit(p, label);
  if (after == nullptr) {
    const auto read = parse_float(p, text_end, label);
    if (read.ec != std::errc() || !ends_word(read.ptr) ||
        !detail::is_exact_label({p, static_cast<std::size_t>(read.ptr - p)}, label)) {
      parse_error_builder(line).bad_label(p);
    }
    label += 0.0f;
    after = read.ptr;
  }
  std::uint64_t previous = 0;
  while (p = skip_blanks(after), digit_at(p) < 10 || !ends_line(p)) {
    // A loop over digits is fast: an index mostly has as many digits as the previous index, so branches are predicted.
    std::uint64_t index = 0;
    const char* q = p;
    for (unsigned digit = digit_at(q); digit < 10; digit = digit_at(++q)) index = index * 10 + digit;
    if (*q != ':' || index <= previous || (q - p > few_digits && (index > largest_index || q - p > most_digits))) {
      parse_error_builder(line).bad_index(p, previous);
    }
    ++q;
    // Fast path for values with one digit, such as flags and counts, which most sparse data has. A character that ends
    // a line is not greater than '#', so a greater character is followed by another one. Other values have no fast path
    // by their first character, because a branch between signs and digits is random.
    if (const auto digit = digit_at(q); *q > '#' && ends_word(q + 1) && digit < 10) {
      after = q + 1;
      store(static_cast<std::uint32_t>(index - 1), static_cast<float>(static_cast<int>(digit)));
    } else {
      float value = 0;
      const auto read = parse_float(q, text_end, value);
      if (read.ec != std::errc() || !ends_word(read.ptr)) parse_error_builder(line).bad_value(q, index);
      after = read.ptr;
      store(static_cast<std::uint32_t>(index - 1), value);
    }
    previous = index;
  }
  at = p;
  return store;
}

// A writer of the entries of sparse rows, one after another.
class entry_writer {
 public:
  explicit entry_writer(const detail::row_places& rows)
      : indices_(rows.indices), values_(rows.values), step_(rows.step), end_(rows.entries * rows.step) {}

  void operator()(std::uint32_t index, float value) {
    if (next_ == end_) return;  // an entry of a bad line: the space is for the entries of good lines
    indices_[next_] = index;
    values_[next_] = value;
    next_ += step_;
  }

  std::uint64_t stored() const { return next_ / step_; }

 private:
  std::uint32_t* indices_;
  float* values_;
  std::size_t step_;
  std::size_t end_;
  std::size_t next_ = 0;
};

class libsvm_format final : public detail::text_format {
 public:
  libsvm_format(const std::string& path, const read_options& options) : text_format(path), options_(options) {}

  text_survey survey(std::string_view piece) const override {
    return options_.keep_bad_records ? survey_by_parsing(piece) : survey_by_counting(piece);
  }

  std::pair<std::size_t, bool> shape(const text_survey& total) const override {
    if (total.rows == 0) {
      throw data_error({file}, "has no samples (all lines are blank or comments); check how it was made");
    }
    const std::size_t features = std::max<std::size_t>(total.largest_index, options_.min_features);
    const bool is_mostly_dense = features <= 2 * total.entries / total.rows;
    return {features, options_.layout == layout::dense || (options_.layout == layout::automatic && is_mostly_dense)};
  }

  void parse(std::string_view piece, const text_survey& before, const detail::row_places& rows) const override {
    std::size_t at = 0;
    entry_writer entries(rows);
    for_each_sample(piece, before.lines, [&](const char*& p, const line_place& line) {
      try {
        if (rows.indices == nullptr) {
          parse_line(p, line, parse_float_, rows.labels[at], [values = rows.row(at)](std::uint32_t index, float value) {
            if (index < values.size()) values[index] = value;  // otherwise a later index is lower and refused
          });
        } else {
          entries = parse_line(p, line, parse_float_, rows.labels[at], entries);
        }
      } catch (const data_error& error) {
        rows.refuse(at, before.rows + at, error);
      }
      if (rows.ends != nullptr) rows.ends[at] = rows.entries_before + entries.stored();
      ++at;
    });
  }

 private:
  // Calls each(position of the label, line) for every sample of a piece. `lines` is the number of lines in front of it.
  template <class Each>
  void for_each_sample(std::string_view piece, std::uint64_t lines, Each each) const {
    const auto parse_lines = [&](std::string_view text) {
      const char* const end = text.data() + text.size();
      for (const char* p = text.data(); p != end; ++p) {
        const line_place line{file, ++lines, {p, end}};
        p = skip_blanks(p);
        if (!ends_line(p)) each(p, line);
        while (*p != '\n') ++p;  // to the line's end, after a comment or a bad word
      }
    };
    const std::size_t last = piece.rfind('\n') + 1;
    parse_lines(piece.substr(0, last));
    // A newline is appended to a last line without newline, because memory after the text must not be read.
    if (last != piece.size()) parse_lines(std::string(piece.substr(last)) + '\n');
  }

  static text_survey survey_by_counting(std::string_view text) {
    text_survey found;
    const bool comments = has_comments(text);
    if (!comments) found.entries = detail::count_byte(text, ':');
    while (!text.empty()) {
      const line_of_text line = split_line(text, comments);
      ++found.lines;
      if (line.blank()) continue;
      ++found.rows;
      if (comments) found.entries += static_cast<std::uint64_t>(std::count(line.begin, line.end, ':'));
      found.largest_index = std::max(found.largest_index, last_index(line));
    }
    return found;
  }

  // Surveys by parsing, to detect the lines that are not valid samples. Such lines are rows without entries.
  text_survey survey_by_parsing(std::string_view piece) const {
    text_survey found{.lines = static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n'))};
    for_each_sample(piece, 0, [&](const char*& p, const line_place& line) {
      text_survey line_survey{.rows = 1};
      float label = 0;
      try {
        parse_line(p, line, parse_float_, label, [&](std::uint32_t index, float /*value*/) {
          ++line_survey.entries;
          line_survey.largest_index = index + std::uint64_t{1};
        });
      } catch (const data_error&) {
        line_survey = {.rows = 1};
      }
      found += line_survey;
    });
    return found;
  }

  read_options options_;
  detail::float_parser parse_float_ = detail::fastest_float_parser();
};

}  // namespace detail::libsvm

MUSTER_INLINE std::shared_ptr<const detail::text_format> detail::format_of_libsvm(const std::string& file,
                                                                                  const read_options& options) {
  return std::make_shared<const detail::libsvm::libsvm_format>(file, options);
}

MUSTER_INLINE dataset read_libsvm(const std::string& path, const read_options& options) {
  const mapped_file file(path, compressed_files::decoded, options.http);
  return detail::dataset_of_text(file.text(), detail::libsvm::libsvm_format(path, options), "libsvm:" + path, options);
}

MUSTER_INLINE dataset parse_libsvm(std::string_view text, const std::string& name, const read_options& options) {
  return detail::dataset_of_text(text, detail::libsvm::libsvm_format(name, options), name, options);
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
