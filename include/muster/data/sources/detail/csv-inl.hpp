#pragma once

#include <muster/data/sources/csv.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <unordered_set>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/text.hpp>
#include <muster/data/label.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/table_columns.hpp>
#include <muster/data/sources/text_format.hpp>

// A quote at the beginning of a field opens a quoted field. Newlines before the closing quote do not end the row. Other
// quotes are text.

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

// A row without its line end, and the number of the row's first line.
struct csv_row {
  const char* begin;
  const char* end;
  std::uint64_t line;
};

MUSTER_INLINE bool has_quotes(std::string_view text) { return text.find('"') != std::string_view::npos; }

// Largest number of bytes between the quotes of a field. The search for a closing quote ends after so many bytes.
inline constexpr std::ptrdiff_t most_quoted = std::ptrdiff_t{1} << 20;

// Returns the closing quote of a field whose content begins at `p`, or null if the field has no closing quote.
MUSTER_INLINE const char* closing_quote(const char* p, const char* end) {
  for (end = std::min(end, end - p > most_quoted ? p + most_quoted : end);; p += 2) {
    p = static_cast<const char*>(std::memchr(p, '"', static_cast<std::size_t>(end - p)));
    if (p == nullptr || p + 1 == end || p[1] != '"') return p;
    if (end - p < 2) return nullptr;
  }
}

MUSTER_INLINE bool is_missing(std::string_view word) {
  constexpr std::string_view missing_words[] = {"", "NA", "N/A", "nan", "NaN", "NULL", "null", "None", "?"};
  return std::find(std::begin(missing_words), std::end(missing_words), word) != std::end(missing_words);
}

// Returns true if a word is a number of any size. Infinity counts as a number.
MUSTER_INLINE bool is_number(std::string_view word) {
  if (word.starts_with('+')) word.remove_prefix(1);
  float value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  return code != std::errc::invalid_argument && end == word.data() + word.size();
}

// The characters that end fields and rows, and the columns.
struct csv_marks {
  char delimiter = ',';
  char newline = '\n';
  std::span<const std::size_t> places = {};  // as in table_columns; empty: unknown until the first row is read

  bool is_blank(char c) const { return c == ' ' || (c == '\t' && c != delimiter); }
  const char* skip_blanks(const char* p, const char* end) const {
    while (p != end && is_blank(*p)) ++p;
    return p;
  }
  // Skips blanks after the content of a field, up to the delimiter. The delimiter itself may be a blank.
  const char* skip_to_delimiter(const char* p, const char* end) const {
    return p != end && *p == delimiter ? p : skip_blanks(p, end);
  }
  static const char* find(char mark, const char* begin, const char* end) {
    const auto* found = static_cast<const char*>(std::memchr(begin, mark, static_cast<std::size_t>(end - begin)));
    return found != nullptr ? found : end;
  }
};

// Reads the rows of a text one after another. Blank rows are included.
class row_reader {
 public:
  row_reader(std::string_view text, std::uint64_t lines_before, bool quotes, const csv_marks& marks)
      : marks_(marks), at_(text.data()), end_(at_ + text.size()), line_(lines_before + 1), quotes_(quotes) {}

  bool next(csv_row& row) {
    if (at_ == end_) return false;
    row = {at_, end_of_row(at_), line_};
    line_ += 1 + static_cast<std::uint64_t>(quotes_ ? std::count(row.begin, row.end, marks_.newline) : 0);
    at_ = row.end == end_ ? end_ : row.end + 1;
    while (row.end != row.begin && row.end[-1] == '\r') --row.end;
    while (marks_.delimiter == ' ' && row.end != row.begin && marks_.is_blank(row.end[-1])) --row.end;
    return true;
  }
  // Number of lines read so far, and the beginning of the next row.
  std::uint64_t lines() const { return line_ - 1; }
  const char* at() const { return at_; }

 private:
  // Returns the end of a row. A row has several lines only if it has as many fields as other rows, each quote is closed
  // at the end of a field, and the second line alone is not a row. Otherwise the row is the first line alone, so that a
  // wrong quote makes a single line bad.
  const char* end_of_row(const char* const begin) const {
    const char* const first = marks_.find(marks_.newline, begin, end_);
    if (!quotes_ || marks_.find('"', begin, first) == first) return first;
    const char* p = begin;
    std::size_t before = 0;  // number of columns that end in the first line
    for (std::size_t fields = 1;; ++fields, ++p) {
      if (p <= first) before = fields - 1;
      p = marks_.skip_blanks(p, end_);
      if (p != end_ && *p == '"') {
        p = closing_quote(p + 1, end_);
        if (p == nullptr) return first;
        p = marks_.skip_to_delimiter(p + 1, end_);
        while (p != end_ && *p == '\r' && marks_.newline != '\r') ++p;
        if (p != end_ && *p != marks_.delimiter && *p != marks_.newline) return first;
      } else {
        const char* const line = marks_.find(marks_.newline, p, end_);
        if (marks_.delimiter == ' ' && p == line) --fields;  // blanks at the end of the line
        p = marks_.find(marks_.delimiter, p, line);
      }
      if (p != end_ && *p != marks_.newline) continue;
      if (p <= first || marks_.places.empty()) return p;
      return fields != marks_.places.size() || is_row(first + 1, before) ? first : p;
    }
  }

  // Returns true if a line alone is a row when quotes are read as text: each column of numbers has a number, and at
  // least one such column is among the first `before` columns.
  bool is_row(const char* p, std::size_t before) const {
    const char* const line = marks_.find(marks_.newline, p, end_);
    bool has_number = false;
    for (std::size_t column = 0;; ++column, ++p) {
      if (column == marks_.places.size()) return false;
      const char* const end = marks_.find(marks_.delimiter, p, line);
      if (marks_.places[column] != detail::ignored_place) {
        p = marks_.skip_blanks(p, end);
        std::string_view word(p, static_cast<std::size_t>(end - p));
        while (!word.empty() && (marks_.is_blank(word.back()) || word.back() == '\r')) word.remove_suffix(1);
        if (!is_number(word) && !is_missing(word)) return false;
        has_number = has_number || column < before;
      }
      p = end;
      if (p == line) return has_number && column + 1 == marks_.places.size();
    }
  }

  csv_marks marks_;
  const char* at_;
  const char* end_;
  std::uint64_t line_;
  bool quotes_;
};

// A field: the text between two delimiters, or between two quotes.
struct csv_field {
  std::string_view content;
  const char* end;  // the delimiter, or the end of the row
};

class csv_format final : public detail::text_format {
 public:
  csv_format(std::string_view text, const std::string& path, const csv_options& csv, const read_options& options)
      : text_format(path), missing_(csv.missing), least_(options.min_features) {
    marks_.delimiter = csv.delimiter;
    const char delimiter = csv.delimiter;
    if (options.layout == layout::sparse) {
      throw configuration_error("a table is dense (" + file +
                                " cannot be read with the sparse layout); leave the layout");
    }
    if (delimiter == '"' || delimiter == '\n' || delimiter == '\r' || detail::is_digit(delimiter) ||
        std::strchr("+-.eE", delimiter) != nullptr) {
      throw configuration_error("a table cannot be delimited by '" + std::string(1, delimiter) +
                                "' (it is part of numbers or quotes); choose a comma, a semicolon, a tab or the like");
    }
    read_beginning(text, csv);
    digest place_digest;
    for (const std::size_t place : columns_.roles) place_digest.add(std::uint64_t{place});
    read_mode = place_digest.add(static_cast<std::uint64_t>(missing_)).value();
  }

  std::size_t first_piece(std::string_view rest, std::size_t bytes, bool quotes) const override {
    if (!quotes) return std::min(rest.find(marks_.newline, std::min(bytes, rest.size()) - 1), rest.size() - 1) + 1;
    row_reader rows(rest, 0, quotes, marks_);
    std::size_t size = 0;
    for (csv_row row{}; size < bytes && rows.next(row);) size = static_cast<std::size_t>(rows.at() - rest.data());
    return size;
  }

  detail::text_survey survey(std::string_view piece) const override {
    detail::text_survey found{.quotes = has_quotes(piece)};
    row_reader rows(piece, 0, found.quotes, marks_);
    for (csv_row row{}; rows.next(row);) found.rows += is_blank(row) ? 0 : 1;
    found.lines = rows.lines();
    return found;
  }

  std::pair<std::size_t, bool> shape(const detail::text_survey& total) const override {
    if (total.rows == 0) throw data_error({file}, "has no rows but the header; check how it was made");
    return {std::max(columns_.features, least_), true};
  }

  void parse(std::string_view piece, const detail::text_survey& before, const detail::row_places& rows) const override {
    row_reader reader(piece, before.lines, before.quotes, marks_);
    std::size_t at = 0;
    for (csv_row row{}; reader.next(row);) {
      if (is_blank(row)) continue;
      try {
        parse_row(row, rows.row(at), rows.labels[at]);
      } catch (const data_error& error) {
        rows.refuse(at, before.rows + at, error);
      }
      ++at;
    }
  }

 private:
  bool is_blank(const csv_row& row) const { return skip_blanks(row.begin, row.end) == row.end; }
  const char* skip_blanks(const char* p, const char* end) const { return marks_.skip_blanks(p, end); }

  [[noreturn]] void fail(const csv_row& row, const char* at, const std::string& text) const {
    const char* const newline =
        std::find(std::make_reverse_iterator(at), std::make_reverse_iterator(row.begin), marks_.newline).base();
    const auto lines = static_cast<std::uint64_t>(std::count(row.begin, newline, marks_.newline));
    const char* const lone_return = std::adjacent_find(
        row.begin, row.end, [](char c, char next) { return c == '\r' && next != '\r' && next != '\n'; });
    throw data_error({file, row.line + lines, static_cast<std::uint64_t>(at - newline) + 1},
                     lone_return == row.end
                         ? text
                         : "there is a carriage return within the row (the file has line ends of two kinds); "
                           "give it one kind");
  }

  csv_field take_field(const csv_row& row, const char* p) const {
    p = skip_blanks(p, row.end);
    csv_field field;
    if (p != row.end && *p == '"') {
      const char* const open = p++;
      while (true) {
        p = std::find(p, row.end, '"');
        if (p == row.end) fail(row, open, "a quote is not closed (no field ends with a quote after it); close it");
        if (p + 1 == row.end || p[1] != '"') break;
        p += 2;
      }
      field.content = {open + 1, static_cast<std::size_t>(p - open - 1)};
      field.end = marks_.skip_to_delimiter(p + 1, row.end);
      if (field.end != row.end && *field.end != marks_.delimiter) {
        fail(row, field.end,
             "there is text after a closing quote (a quoted field ends there); write \"\" for a quote within quotes");
      }
      return field;
    }
    field.end = std::find(p, row.end, marks_.delimiter);
    const char* last = field.end;
    while (last != p && marks_.is_blank(last[-1])) --last;
    field.content = {p, static_cast<std::size_t>(last - p)};
    return field;
  }

  // Returns the value of a field that is not a plain number: a quoted, missing or wrong number.
  float read_unusual(const csv_row& row, std::string_view word, std::size_t column) const {
    float value = 0;
    const auto [end, code] = detail::parse_float(word.data(), word.data() + word.size(), value);
    if (!word.empty() && code == std::errc() && end == word.data() + word.size()) return value;
    const std::string where = " in column " + std::to_string(column);
    if (is_missing(word)) {
      if (columns_.roles[column] == detail::label_place) fail(row, word.data(), detail::missing_label);
      if (missing_ == missing_values::zero) return 0;
      if (missing_ == missing_values::nan) return std::numeric_limits<float>::quiet_NaN();
      fail(row, word.data(),
           "a value is missing" + where +
               " (the field is empty, or has a word such as NA); choose missing=zero or missing=nan");
    }
    if (code == std::errc::result_out_of_range) {
      fail(row, word.data(),
           "the number " + detail::quoted(word) + where + " is too large for a float; scale the column");
    }
    fail(row, word.data(),
         detail::quoted(word) + where + " is not a number; correct it, " +
             (row.begin == taken_for_sample_ ? "set header=1 if the first row has names, " : "") +
             "or leave the column out with ignore");
  }

  void parse_row(const csv_row& row, std::span<float> values, float& label) const {
    const char* p = row.begin;
    const std::size_t count = columns_.roles.size();
    for (std::size_t column = 0; column < count; ++column) {
      const std::size_t place = columns_.roles[column];
      const char* end = nullptr;
      if (place != detail::ignored_place) {
        float value = 0;
        const char* const first = skip_blanks(p, row.end);
        const auto read = parse_float_(first, row.end, value);
        end = read.ptr;
        const auto ends_field = [&] { return end == row.end || *end == marks_.delimiter; };
        bool simple = read.ec == std::errc();
        if (simple && !ends_field()) {
          end = skip_blanks(end, row.end);
          simple = ends_field();
        }
        csv_field field{{first, static_cast<std::size_t>(read.ptr - first)}, end};
        if (!simple) {
          field = take_field(row, p);
          value = read_unusual(row, field.content, column);
          end = field.end;
        }
        if (place == detail::label_place) {
          if (!detail::is_exact_label(field.content, value))
            fail(row, field.content.data(), detail::no_label(detail::quoted(field.content)));
          value += 0.0f;  // -0 is 0
        }
        (place == detail::label_place ? label : values[place]) = value;
      } else {
        end = take_field(row, p).end;
      }
      if (column + 1 == count) {
        if (end == row.end) return;
        fail(row, end,
             "the row has more than " + std::to_string(count) +
                 " fields (as many as the first row has); correct it, or quote fields with delimiters");
      }
      if (end == row.end) {
        fail(row, end,
             "the row ends after " + std::to_string(column + 1) + " fields (the first row has " +
                 std::to_string(count) + "); correct it");
      }
      p = end + 1;
    }
  }

  // The first row that is not blank, its fields, and the number of lines up to the row's end.
  struct first_row : csv_row {
    std::vector<std::string> fields = {};
    std::vector<const char*> places = {};  // each field's begin
    std::uint64_t lines = 0;
  };

  first_row read_first_row(std::string_view rest) const {
    first_row row{};
    // A large text is read up to the end of the row and as far as the search for a closing quote reaches.
    for (std::size_t search_bytes = 2 * std::size_t{most_quoted};; search_bytes *= 2) {
      const std::string_view part = rest.substr(0, search_bytes);
      row_reader rows(part, 0, has_quotes(part), marks_);
      bool found = true;
      do {
        found = rows.next(row);
      } while (found && is_blank(row));
      row.lines = rows.lines();
      const bool complete = part.size() == rest.size();
      if (found && (complete || row.end + most_quoted < part.data() + part.size())) break;
      if (complete) throw data_error({file}, "has no rows (all lines are blank); check how it was made");
    }
    for (const char* p = row.begin;; ++p) {
      const csv_field field = take_field(row, p);
      std::string& text = row.fields.emplace_back(field.content);
      row.places.push_back(field.content.data());
      if (field.content.data() != p && field.content.data()[-1] == '"') {
        for (auto at = text.find("\"\""); at != std::string::npos; at = text.find("\"\"", at + 1)) text.erase(at, 1);
      }
      p = field.end;
      if (p == row.end) return row;
    }
  }

  // Returns true if the first row has names. Ignored columns do not count. A single word among numbers is an error in
  // the first row, as in any other row.
  bool has_names(const first_row& row, const csv_options& csv) {
    if (csv.header != csv_header::automatic) return csv.header == csv_header::present;
    const auto is_name = [](const std::string& word) { return !word.empty() && !parse_number<std::size_t>(word); };
    const auto is_requested = [&](const std::string& name) {
      return is_name(name) && std::ranges::find(row.fields, name) != row.fields.end();
    };
    if (is_requested(csv.label) || std::ranges::any_of(csv.ignore, is_requested)) return true;
    std::size_t numbers = 0, words = 0;
    for (std::size_t k = 0; k < row.fields.size(); ++k) {
      const std::string& field = row.fields[k];
      const auto is_column = [&](const std::string& word) {
        return word == (is_name(word) ? field : std::to_string(k));
      };
      if (is_missing(field) || std::ranges::any_of(csv.ignore, is_column)) continue;
      ++(is_number(field) ? numbers : words);
    }
    const bool counted = is_counted(row.fields);
    if (counted && !row.fields.front().empty()) {
      throw configuration_error("the first row of " + file +
                                " is 0, 1, 2 and so on (either names as pandas writes them, or a "
                                "sample); set header=1 or header=0");
    }
    const bool names = counted || (words != 0 && words >= numbers && (words > 1 || numbers == 0));
    notes.push_back("the first row of " + file + " is read as " +
                    (names ? "names (" + listed(row.fields) + "); set header=0 if it is a sample"
                           : "a sample (" + listed(row.fields) + "); set header=1 if it has names"));
    log(log_level::warning, notes.back());
    if (!names) taken_for_sample_ = row.begin;
    return names;
  }

  // Returns true if the fields are 0, 1, 2 and so on, possibly after an empty field: pandas writes such names.
  static bool is_counted(const std::vector<std::string>& fields) {
    const std::size_t unnamed = fields.front().empty() ? 1 : 0;
    if (fields.size() < (unnamed != 0 ? 2 : 3)) return false;
    for (std::size_t k = unnamed; k < fields.size(); ++k) {
      if (fields[k] != std::to_string(k - unnamed)) return false;
    }
    return true;
  }

  static std::string listed(const std::vector<std::string>& fields) {
    constexpr std::size_t most = 5;
    const auto first_fields = std::span(fields).first(std::min(most, fields.size()));
    return muster::detail::joined(first_fields, ", ", [](const std::string& field) { return detail::quoted(field); }) +
           (fields.size() > most ? ", ..." : "");
  }

  // Reads the first row, which has the names of columns or is a sample.
  void read_beginning(std::string_view text, const csv_options& csv) {
    if (text.starts_with(byte_order_mark)) begin = byte_order_mark.size();
    if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
      throw data_error({file}, "is UTF-16 (by its first bytes, but tables are read as UTF-8); save it as UTF-8");
    const std::string_view rest = text.substr(begin);
    const auto end_of_line = std::min(rest.find_first_not_of('\r', rest.find_first_of("\r\n")), rest.size());
    if (end_of_line != 0 && rest[end_of_line - 1] == '\r' && rest.find('\n', end_of_line) == std::string_view::npos)
      marks_.newline = '\r';
    first_row row = read_first_row(rest);
    if (!has_names(row, csv)) {
      row.fields.assign(row.fields.size(), {});
    } else {
      begin = static_cast<std::size_t>(
          std::min(marks_.find(marks_.newline, row.end, text.data() + text.size()) + 1, text.data() + text.size()) -
          text.data());
      start.lines = row.lines;
      if (is_counted(row.fields)) row.fields.assign(row.fields.size(), {});
      refuse_doubles(row);
    }
    columns_ = detail::plan_columns(row.fields, csv.label, csv.ignore, file);
    columns = std::move(columns_.names);
    columns.has_header = begin != 0 && start.lines != 0;
    marks_.places = columns_.roles;
  }

  void refuse_doubles(const first_row& row) const {
    std::unordered_set<std::string_view> names;
    for (std::size_t k = 0; k < row.fields.size(); ++k) {
      if (row.fields[k].empty() || names.insert(row.fields[k]).second) continue;
      fail(row, row.places[k],
           "two columns have the name " + detail::quoted(row.fields[k]) +
               " (a column is found by its name); rename one column");
    }
  }

  detail::table_columns columns_;
  csv_marks marks_;
  missing_values missing_;
  std::size_t least_;                       // smallest number of features
  const char* taken_for_sample_ = nullptr;  // begin of the first row, if the row was guessed to be a sample
  detail::float_parser parse_float_ = detail::fastest_float_parser();
};

}  // namespace detail

MUSTER_INLINE std::shared_ptr<const detail::text_format> detail::format_of_csv(std::string_view text,
                                                                               const std::string& file,
                                                                               const csv_options& csv,
                                                                               const read_options& options) {
  return std::make_shared<const detail::csv_format>(text, file, csv, options);
}

MUSTER_INLINE dataset read_csv(const std::string& path, const csv_options& csv, const read_options& options) {
  const mapped_file file(path, compressed_files::decoded, options.http);
  return detail::dataset_of_text(file.text(), detail::csv_format(file.text(), path, csv, options), "csv:" + path,
                                 options);
}

MUSTER_INLINE dataset parse_csv(std::string_view text, const std::string& name, const csv_options& csv,
                                const read_options& options) {
  return detail::dataset_of_text(text, detail::csv_format(text, name, csv, options), name, options);
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
