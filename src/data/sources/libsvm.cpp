#include <muster/data/sources/libsvm.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

#include <muster/core/error.hpp>
#include "decimal.hpp"
#include "libsvm_line.hpp"
#include "text.hpp"

// Where bad lines are kept, which have no entries, the survey parses to find them.

namespace muster { inline namespace v0 {
namespace {

using namespace detail::libsvm;
using detail::text_survey;

// Indices ascend, so that the last one of a line is the largest. One that is none counts as 0.
std::uint64_t last_index(line_of_text line) {
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

// A number of one digit, as labels mostly are, and where it ends; null if it is another.
inline const char* read_digit(const char* p, float& value) {
  const bool negative = *p == '-';
  p += static_cast<int>(negative) | static_cast<int>(*p == '+');  // signs come at random, so there is no branch on them
  if (!detail::is_digit(*p) || !ends_word(p + 1)) return nullptr;
  value = std::copysign(static_cast<float>(*p - '0'), negative ? -1.0f : 1.0f) + 0.0f;  // -0 is 0
  return p + 1;
}

// Parses the line whose label is at `at`, and moves that to its end; calls store(index from 0, value) for each feature,
// in order, and returns it. Not inlined, so that the loop has the registers for itself.
template <class Store>
[[gnu::noinline]] Store parse_line(const char*& at, const line_place& line, detail::float_parser parse_float,
                                   float& label, Store store) {
  const char* const text_end = line.rest.data() + line.rest.size();
  const char* p = at;
  const char* after = read_digit(p, label);
  if (after == nullptr) {
    const auto read = parse_float(p, text_end, label);
    if (read.ec != std::errc() || !ends_word(read.ptr) ||
        !detail::is_label({p, static_cast<std::size_t>(read.ptr - p)}, label)) {
      complaint(line).bad_label(p);
    }
    label += 0.0f;
    after = read.ptr;
  }
  std::uint64_t previous = 0;
  while (p = skip_blanks(after), digit_at(p) < 10 || !ends_line(p)) {
    // Digit by digit: the next index mostly has as many as the last one, which is guessed right.
    std::uint64_t index = 0;
    const char* q = p;
    for (unsigned digit = digit_at(q); digit < 10; digit = digit_at(++q)) index = index * 10 + digit;
    if (*q != ':' || index <= previous || (q - p > few_digits && (index > largest_index || q - p > most_digits))) {
      complaint(line).bad_index(p, previous);
    }
    ++q;
    // Flags and counts: most sparse data. What ends a line is not above '#', so there is a character behind one that
    // is. That other values begin with a sign or a digit is a branch as good as random.
    if (const auto digit = digit_at(q); *q > '#' && ends_word(q + 1) && digit < 10) {
      after = q + 1;
      store(static_cast<std::uint32_t>(index - 1), static_cast<float>(static_cast<int>(digit)));
    } else {
      float value = 0;
      const auto read = parse_float(q, text_end, value);
      if (read.ec != std::errc() || !ends_word(read.ptr)) complaint(line).bad_value(q, index);
      after = read.ptr;
      store(static_cast<std::uint32_t>(index - 1), value);
    }
    previous = index;
  }
  at = p;
  return store;
}

// Where the entries of sparse rows go, one after the other.
class entry_places {
 public:
  explicit entry_places(const detail::row_places& to)
      : indices_(to.indices), values_(to.values), step_(to.step), end_(to.entries * to.step) {}

  void operator()(std::uint32_t index, float value) {
    if (next_ == end_) return;  // of a bad line: there is room for those of the others
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

  text_survey look_over(std::string_view piece) const override {
    return options_.keep_bad_records ? look_for_good(piece) : look_for_all(piece);
  }

  std::pair<std::size_t, bool> shape(const text_survey& total) const override {
    if (total.rows == 0) {
      throw data_error({file}, "has no samples (blank lines and comments are all there is); check how it was made");
    }
    const std::size_t features = std::max<std::size_t>(total.largest, options_.min_features);
    const bool mostly_given = features <= 2 * total.entries / total.rows;
    return {features, options_.layout == layout::dense || (options_.layout == layout::automatic && mostly_given)};
  }

  void parse(std::string_view piece, const text_survey& before, const detail::row_places& to) const override {
    std::size_t at = 0;
    entry_places entries(to);
    for_each_sample(piece, before.lines, [&](const char*& p, const line_place& line) {
      try {
        if (to.indices == nullptr) {
          parse_line(p, line, parse_float_, to.labels[at], [values = to.row(at)](std::uint32_t index, float value) {
            if (index < values.size()) values[index] = value;  // else a later index of the line is lower, and refused
          });
        } else {
          entries = parse_line(p, line, parse_float_, to.labels[at], entries);
        }
      } catch (const data_error& error) {
        to.refuse(at, before.rows + at, error);
      }
      if (to.ends != nullptr) to.ends[at] = to.entries_before + entries.stored();
      ++at;
    });
  }

 private:
  // Calls each(where its label is, line) for every sample of a piece that so many lines come before.
  template <class Each>
  void for_each_sample(std::string_view piece, std::uint64_t lines, Each each) const {
    const auto parse_lines = [&](std::string_view text) {
      const char* const end = text.data() + text.size();
      for (const char* p = text.data(); p != end; ++p) {
        const line_place line{file, ++lines, {p, end}};
        p = skip_blanks(p);
        if (!ends_line(p)) each(p, line);
        while (*p != '\n') ++p;  // behind a comment, or a bad word
      }
    };
    const std::size_t last = piece.rfind('\n') + 1;
    parse_lines(piece.substr(0, last));
    // A last line that no newline ends gets one: what is behind it may not be read.
    if (last != piece.size()) parse_lines(std::string(piece.substr(last)) + '\n');
  }

  static text_survey look_for_all(std::string_view text) {
    text_survey found;
    const bool comments = has_comments(text);
    if (!comments) found.entries = detail::count_byte(text, ':');
    while (!text.empty()) {
      const line_of_text line = take_line(text, comments);
      ++found.lines;
      if (line.blank()) continue;
      ++found.rows;
      if (comments) found.entries += static_cast<std::uint64_t>(std::count(line.begin, line.end, ':'));
      found.largest = std::max(found.largest, last_index(line));
    }
    return found;
  }

  // The same that parses, so that it knows the lines that say no sample: they are rows without entries.
  text_survey look_for_good(std::string_view piece) const {
    text_survey found{.lines = static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n'))};
    for_each_sample(piece, 0, [&](const char*& p, const line_place& line) {
      text_survey of_line{.rows = 1};
      float label = 0;
      try {
        parse_line(p, line, parse_float_, label, [&](std::uint32_t index, float /*value*/) {
          ++of_line.entries;
          of_line.largest = index + std::uint64_t{1};
        });
      } catch (const data_error&) {
        of_line = {.rows = 1};
      }
      found += of_line;
    });
    return found;
  }

  read_options options_;
  detail::float_parser parse_float_ = detail::fastest_float_parser();
};

}  // namespace

std::shared_ptr<const detail::text_format> detail::format_of_libsvm(const std::string& file,
                                                                    const read_options& options) {
  return std::make_shared<const libsvm_format>(file, options);
}

dataset read_libsvm(const std::string& path, const read_options& options) {
  const mapped_file file(path, compressed_files::decoded, options.http);
  return detail::dataset_of_text(file.text(), libsvm_format(path, options), "libsvm:" + path, options);
}

dataset parse_libsvm(std::string_view text, const std::string& name, const read_options& options) {
  return detail::dataset_of_text(text, libsvm_format(name, options), name, options);
}

}}  // namespace muster::v0
