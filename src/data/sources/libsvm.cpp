#include <muster/data/sources/libsvm.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <muster/core/error.hpp>
#include "decimal.hpp"
#include "text.hpp"

// Where bad lines are kept, which have no entries, the survey parses to find them.

namespace muster::inline v0 {
namespace {

using detail::text_survey;

constexpr std::uint64_t largest_index = std::numeric_limits<std::uint32_t>::max();
constexpr std::ptrdiff_t most_digits = 19;  // of an index, with zeros before it: 64 bits hold them

// These are inline because GCC takes that for a hint: without it sparse text is parsed 8 % more slowly.
inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

inline const char* skip_blanks(const char* p) {
  while (is_blank(*p)) ++p;
  return p;
}

// The digit that a character is; 10 or more if it is none.
inline std::uint64_t digit_at(const char* p) { return static_cast<unsigned char>(*p - '0'); }

// What a line says: without its newline, a carriage return before that, and a comment. In a line that is parsed one of
// these is at the end, where loops over blanks and digits stop.
struct line_of_text {
  const char* begin;
  const char* end;

  bool blank() const { return std::find_if_not(begin, end, is_blank) == end; }
};

// Most files have no comments, and are not searched for them line by line.
inline bool has_comments(std::string_view text) { return std::memchr(text.data(), '#', text.size()) != nullptr; }

// Takes the first line off `rest`, which is not empty.
inline line_of_text take_line(std::string_view& rest, bool comments) {
  const char* const begin = rest.data();
  const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', rest.size()));
  const char* end = newline != nullptr ? newline : begin + rest.size();
  rest.remove_prefix(static_cast<std::size_t>(end - begin) + (newline != nullptr ? 1 : 0));
  if (end != begin && end[-1] == '\r') --end;
  if (!comments) return {begin, end};
  const auto* comment = static_cast<const char*>(std::memchr(begin, '#', static_cast<std::size_t>(end - begin)));
  return {begin, comment != nullptr ? comment : end};
}

// The words of an error about the word that `p` is in or at the start of.
class complaint {
 public:
  complaint(const std::string& file, std::uint64_t number, line_of_text line)
      : file_(file), number_(number), line_(line) {}

  [[noreturn]] void fail(const char* at, const std::string& text) const {
    throw data_error({file_, number_, static_cast<std::uint64_t>(at - line_.begin) + 1}, text);
  }

  // The word that starts at `p`, in quotes.
  std::string quote(const char* p) const { return detail::quoted({p, static_cast<std::size_t>(end_of_word(p) - p)}); }

  const char* end_of_word(const char* p) const { return std::find_if(p, line_.end, is_blank); }

  [[noreturn]] void bad_label(const char* p) const { bad_number(p, "label " + quote(p)); }

  // Something is wrong with the index of the word at `p`; `previous` is the index before it, or 0.
  [[noreturn]] void bad_index(const char* p, std::uint64_t previous) const {
    const std::string word = quote(p);
    if (std::string_view(p, static_cast<std::size_t>(line_.end - p)).starts_with("qid:")) {
      fail(p,
           word + " belongs to ranking data (this reader knows classification and regression); remove the qid words");
    }
    const char* const end = std::find_if_not(p, line_.end, detail::is_digit);
    if (std::find(p, end_of_word(p), ':') == end_of_word(p)) {
      fail(p, word + " is not a feature (a feature is index:value, without blanks); correct the line");
    }
    if (end == p || *end != ':') {
      fail(p, "bad index in " + word + " (an index is a whole number from 1 on); correct the line");
    }
    const char* leading = std::find_if(p, end, [](char c) { return c != '0'; });
    std::uint64_t index = 0;
    for (; leading != end && index <= largest_index; ++leading) {
      index = index * 10 + static_cast<std::uint64_t>(*leading - '0');
    }
    if (index > largest_index || end - p > most_digits) {
      fail(p, "index in " + word + " is too large (at most 4294967295); renumber the features");
    }
    if (index == 0) {
      fail(p, "index 0 in " + word + " (LIBSVM counts features from 1); add 1 to every index of the file");
    }
    if (index == previous) {
      fail(p, "index " + std::to_string(index) + " is there twice, again in " + word +
                  " (a feature has one value); remove one of them");
    }
    fail(p, "index " + std::to_string(index) + " in " + word + " is out of order (it follows " +
                std::to_string(previous) + ", and indices ascend); sort the features of the line");
  }

  [[noreturn]] void bad_value(const char* p, std::uint64_t index) const {
    const std::string of = " of feature " + std::to_string(index);
    if (p == end_of_word(p)) {
      fail(p, "no value" + of + " (a feature is index:value, without blanks); correct the line");
    }
    bad_number(p, "value " + quote(p) + of);
  }

 private:
  [[noreturn]] void bad_number(const char* p, const std::string& what) const {
    const char* const end = end_of_word(p);
    float value = 0;
    const auto [ptr, code] = detail::parse_float(p, end, value);
    if (code == std::errc::result_out_of_range && ptr == end) {
      fail(p, what + " is too large (a float32 reaches 3.4e38); scale it or correct the line");
    }
    const char* const letters = p + (p != end && (*p == '-' || *p == '+') ? 1 : 0);
    const auto [behind, known] = std::from_chars(letters, end, value);
    if (known == std::errc() && behind == end && !std::isfinite(value)) {
      fail(p, what + " is not finite (training needs finite numbers); remove it or correct the line");
    }
    fail(p, what + " is not a number (it is a decimal such as -1, 0.25 or 1e-3); correct the line");
  }

  const std::string& file_;
  std::uint64_t number_;
  line_of_text line_;
};

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

inline bool ends_word(const char* p, const char* end) { return is_blank(*p) || p == end; }

// A number of one digit, as labels mostly are, and where it ends; null if it is another.
inline const char* read_digit(const char* p, const char* end, float& value) {
  const bool negative = *p == '-';
  p += static_cast<int>(negative) | static_cast<int>(*p == '+');  // signs come at random, so there is no branch on them
  if (!detail::is_digit(*p) || !ends_word(p + 1, end)) return nullptr;
  value = std::copysign(static_cast<float>(*p - '0'), negative ? -1.0f : 1.0f);
  return p + 1;
}

// Parses one line that is not blank; calls store(index from 0, value) for each feature, in order, and returns it.
// Not inlined, so that the loop has the registers for itself.
template <class Store>
[[gnu::noinline]] Store parse_line(line_of_text line, const complaint& complaint, detail::float_parser parse_float,
                                   float& label, Store store) {
  const char* p = skip_blanks(line.begin);
  const char* after = read_digit(p, line.end, label);
  if (after == nullptr) {
    const auto read = parse_float(p, line.end, label);
    if (read.ec != std::errc() || !ends_word(read.ptr, line.end)) complaint.bad_label(p);
    after = read.ptr;
  }
  std::uint64_t previous = 0;
  while ((p = skip_blanks(after)) != line.end) {
    // Digit by digit: the next index mostly has as many as the last one, which is guessed right.
    std::uint64_t index = 0;
    const char* q = p;
    for (std::uint64_t digit = digit_at(q); digit < 10; digit = digit_at(++q)) index = index * 10 + digit;
    if (*q != ':' || index <= previous || index > largest_index || q - p > most_digits) {
      complaint.bad_index(p, previous);
    }
    ++q;
    // Flags and counts: most sparse data. That other values begin with a sign or a digit is a branch as good as random.
    if (const auto digit = digit_at(q); q != line.end && ends_word(q + 1, line.end) && digit < 10) {
      after = q + 1;
      store(static_cast<std::uint32_t>(index - 1), static_cast<float>(static_cast<std::int64_t>(digit)));
    } else {
      float value = 0;
      const auto read = parse_float(q, line.end, value);
      if (read.ec != std::errc() || !ends_word(read.ptr, line.end)) complaint.bad_value(q, index);
      after = read.ptr;
      store(static_cast<std::uint32_t>(index - 1), value);
    }
    previous = index;
  }
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
    for_each_sample(piece, before, [&](line_of_text line, const complaint& complaint) {
      try {
        if (to.indices == nullptr) {
          parse_line(line, complaint, parse_float_, to.labels[at],
                     [values = to.row(at)](std::uint32_t index, float value) {
                       if (index < values.size())
                         values[index] = value;  // else a later index of the line is lower, and refused
                     });
        } else {
          entries = parse_line(line, complaint, parse_float_, to.labels[at], entries);
        }
      } catch (const data_error& error) {
        to.refuse(at, before.rows + at, error);
      }
      if (to.ends != nullptr) to.ends[at] = to.entries_before + entries.stored();
      ++at;
    });
  }

 private:
  // Calls each(line, complaint about it) for every sample of a piece.
  template <class Each>
  void for_each_sample(std::string_view piece, const text_survey& before, Each each) const {
    std::uint64_t number = before.lines;
    const auto parse_lines = [&](std::string_view text) {
      while (!text.empty()) {
        const line_of_text line = take_line(text, before.comments);
        ++number;
        if (!line.blank()) each(line, complaint(file, number, line));
      }
    };
    const std::size_t last = piece.rfind('\n') + 1;
    parse_lines(piece.substr(0, last));
    // A last line that no newline ends gets one: what is behind it may not be read.
    if (last != piece.size()) parse_lines(std::string(piece.substr(last)) + '\n');
  }

  static text_survey look_for_all(std::string_view text) {
    text_survey found{.comments = has_comments(text)};
    if (!found.comments) found.entries = detail::count_byte(text, ':');
    while (!text.empty()) {
      const line_of_text line = take_line(text, found.comments);
      ++found.lines;
      if (line.blank()) continue;
      ++found.rows;
      if (found.comments) found.entries += static_cast<std::uint64_t>(std::count(line.begin, line.end, ':'));
      found.largest = std::max(found.largest, last_index(line));
    }
    return found;
  }

  // The same that parses, so that it knows the lines that say no sample: they are rows without entries.
  text_survey look_for_good(std::string_view piece) const {
    text_survey found{.lines = static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n')),
                      .comments = has_comments(piece)};
    for_each_sample(piece, {.comments = found.comments}, [&](line_of_text line, const complaint& complaint) {
      text_survey of_line{.rows = 1};
      float label = 0;
      try {
        parse_line(line, complaint, parse_float_, label, [&](std::uint32_t index, float /*value*/) {
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

}  // namespace muster::inline v0
