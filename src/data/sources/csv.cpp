#include <muster/data/sources/csv.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include "decimal.hpp"
#include "table_columns.hpp"
#include "text.hpp"

// A newline between quotes ends no row; where there are quotes, those before a place say whether it is between them.

namespace muster::inline v0 {
namespace {

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

// A row without its line end, and the number of its first line.
struct csv_row {
  const char* begin;
  const char* end;
  std::uint64_t line;
};

bool has_quotes(std::string_view text) { return text.find('"') != std::string_view::npos; }

// Takes rows off a text, blank ones too.
class row_reader {
 public:
  row_reader(std::string_view text, std::uint64_t lines_before, bool quotes)
      : at_(text.data()), end_(at_ + text.size()), line_(lines_before + 1), quotes_(quotes) {}

  bool next(csv_row& row) {
    if (at_ == end_) return false;
    row = {at_, newline(at_), line_++};
    if (quotes_) {
      const char* from = row.begin;
      for (bool open = false;; ++line_) {
        open ^= std::count(from, row.end, '"') % 2 != 0;
        if (!open || row.end == end_) break;
        from = row.end + 1;
        row.end = newline(from);
      }
    }
    at_ = row.end == end_ ? end_ : row.end + 1;
    if (row.end != row.begin && row.end[-1] == '\r') --row.end;
    return true;
  }
  // Lines so far.
  std::uint64_t lines() const { return line_ - 1; }

 private:
  const char* newline(const char* from) const {
    const auto* found = static_cast<const char*>(std::memchr(from, '\n', static_cast<std::size_t>(end_ - from)));
    return found != nullptr ? found : end_;
  }
  const char* at_;
  const char* end_;
  std::uint64_t line_;
  bool quotes_;
};

// One field: what is between its delimiters, or between its quotes.
struct csv_field {
  std::string_view content;
  const char* end;  // the delimiter, or the end of the row
};

bool is_missing(std::string_view word) {
  constexpr std::string_view known[] = {"", "NA", "N/A", "nan", "NaN", "NULL", "null", "None", "?"};
  return std::find(std::begin(known), std::end(known), word) != std::end(known);
}

class csv_format final : public detail::text_format {
 public:
  csv_format(std::string_view text, const std::string& path, const csv_options& csv, const read_options& options)
      : text_format(path), delimiter_(csv.delimiter), missing_(csv.missing), least_(options.min_features) {
    if (options.layout == layout::sparse) {
      throw configuration_error("a table is dense (" + file +
                                " cannot be read with the sparse layout); leave the layout");
    }
    if (delimiter_ == '"' || delimiter_ == '\n' || delimiter_ == '\r' || detail::is_digit(delimiter_) ||
        std::strchr("+-.eE", delimiter_) != nullptr) {
      throw configuration_error("a table cannot be delimited by '" + std::string(1, delimiter_) +
                                "' (it is part of numbers or quotes); choose a comma, a semicolon, a tab or the like");
    }
    read_beginning(text, csv);
    digest of_places;
    for (const std::size_t place : columns_.places) of_places.add(std::uint64_t{place});
    way = of_places.add(static_cast<std::uint64_t>(missing_)).value();
  }

  std::size_t first_piece(std::string_view rest, std::size_t bytes, bool quotes) const override {
    if (!quotes) return text_format::first_piece(rest, bytes, quotes);
    std::size_t size = std::min(bytes, rest.size()) - 1;
    bool open = detail::count_byte(rest.substr(0, size), '"') % 2 != 0;
    while (size < rest.size() && (open || rest[size] != '\n')) open ^= rest[size++] == '"';
    return std::min(size + 1, rest.size());
  }

  detail::text_survey look_over(std::string_view piece) const override {
    detail::text_survey found{.quotes = has_quotes(piece)};
    row_reader rows(piece, 0, found.quotes);
    for (csv_row row{}; rows.next(row);) found.rows += is_blank(row) ? 0 : 1;
    found.lines = rows.lines();
    return found;
  }

  std::pair<std::size_t, bool> shape(const detail::text_survey& total) const override {
    if (total.rows == 0) throw data_error({file}, "has no rows but the header; check how it was made");
    return {std::max(columns_.features, least_), true};
  }

  void parse(std::string_view piece, const detail::text_survey& before, const detail::row_places& to) const override {
    row_reader rows(piece, before.lines, before.quotes);
    std::size_t at = 0;
    for (csv_row row{}; rows.next(row);) {
      if (is_blank(row)) continue;
      try {
        parse_row(row, to.row(at), to.labels[at]);
      } catch (const data_error& error) {
        to.refuse(at, before.rows + at, error);
      }
      ++at;
    }
  }

 private:
  bool is_blank(char c) const { return (c == ' ' || c == '\t') && c != delimiter_; }
  bool is_blank(const csv_row& row) const { return skip_blanks(row.begin, row.end) == row.end; }
  const char* skip_blanks(const char* p, const char* end) const {
    while (p != end && is_blank(*p)) ++p;
    return p;
  }

  [[noreturn]] void fail(const csv_row& row, const char* at, const std::string& text) const {
    const char* const newline =
        std::find(std::make_reverse_iterator(at), std::make_reverse_iterator(row.begin), '\n').base();
    const auto lines = static_cast<std::uint64_t>(std::count(row.begin, newline, '\n'));
    throw data_error({file, row.line + lines, static_cast<std::uint64_t>(at - newline) + 1}, text);
  }

  csv_field take_field(const csv_row& row, const char* p) const {
    p = skip_blanks(p, row.end);
    csv_field field;
    if (p != row.end && *p == '"') {
      const char* const open = p++;
      while (true) {
        p = std::find(p, row.end, '"');
        if (p == row.end) fail(row, open, "a quote is not closed (the file ends before it is); close it");
        if (p + 1 == row.end || p[1] != '"') break;
        p += 2;
      }
      field.content = {open + 1, static_cast<std::size_t>(p - open - 1)};
      field.end = skip_blanks(p + 1, row.end);
      if (field.end != row.end && *field.end != delimiter_) {
        fail(row, field.end,
             "there is text behind a closing quote (a quoted field ends there); write \"\" for a quote within quotes");
      }
      return field;
    }
    field.end = std::find(p, row.end, delimiter_);
    const char* last = field.end;
    while (last != p && is_blank(last[-1])) --last;
    field.content = {p, static_cast<std::size_t>(last - p)};
    return field;
  }

  // A number that is not simply there: quoted, missing or wrong.
  float read_unusual(const csv_row& row, std::string_view word, std::size_t column) const {
    float value = 0;
    const auto [end, code] = detail::parse_float(word.data(), word.data() + word.size(), value);
    if (!word.empty() && code == std::errc() && end == word.data() + word.size()) return value;
    const std::string where = " in column " + std::to_string(column);
    if (is_missing(word)) {
      if (missing_ == missing_values::zero) return 0;
      if (missing_ == missing_values::nan) return std::numeric_limits<float>::quiet_NaN();
      fail(row, word.data(),
           "a value is missing" + where + " (there is nothing, or a word for it); choose missing=zero or missing=nan");
    }
    if (code == std::errc::result_out_of_range) {
      fail(row, word.data(),
           "the number " + detail::quoted(word) + where + " is too large for a float; scale the column");
    }
    fail(row, word.data(),
         detail::quoted(word) + where + " is not a number; correct it, or leave the column out with ignore");
  }

  void parse_row(const csv_row& row, std::span<float> values, float& label) const {
    const char* p = row.begin;
    const std::size_t count = columns_.places.size();
    for (std::size_t column = 0; column < count; ++column) {
      const std::size_t place = columns_.places[column];
      const char* end = nullptr;
      if (place != detail::ignored) {
        float value = 0;
        const char* const first = skip_blanks(p, row.end);
        const auto read = parse_float_(first, row.end, value);
        end = read.ptr;
        const auto ends_field = [&] { return end == row.end || *end == delimiter_; };
        bool simple = read.ec == std::errc();
        if (simple && !ends_field()) {
          end = skip_blanks(end, row.end);
          simple = ends_field();
        }
        if (!simple) {
          const csv_field field = take_field(row, p);
          value = read_unusual(row, field.content, column);
          end = field.end;
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

  // What the first row says, and how much of the text is not data.
  void read_beginning(std::string_view text, const csv_options& csv) {
    if (text.starts_with(byte_order_mark)) begin = byte_order_mark.size();
    const std::string_view rest = text.substr(begin);
    csv_row row{};
    std::uint64_t lines = 0;
    // Of large text only as much is looked at as the first row takes.
    for (std::size_t looked_at = std::size_t{1} << 20;; looked_at *= 2) {
      const std::string_view part = rest.substr(0, looked_at);
      row_reader rows(part, 0, has_quotes(part));
      bool there = true;
      do {
        there = rows.next(row);
      } while (there && is_blank(row));
      lines = rows.lines();
      const bool whole = part.size() == rest.size();
      if (there && (whole || row.end + 1 < part.data() + part.size())) break;
      if (whole) throw data_error({file}, "has no rows (blank lines are all there is); check how it was made");
    }

    std::vector<std::string> fields;
    bool words = false;
    for (const char* p = row.begin;; ++p) {
      const csv_field field = take_field(row, p);
      float ignored_value = 0;
      const char* const last = field.content.data() + field.content.size();
      const auto number = detail::parse_float(field.content.data(), last, ignored_value);
      words = words || (number.ptr != last && !is_missing(field.content));
      fields.emplace_back(field.content);
      p = field.end;
      if (p == row.end) break;
    }
    const bool header = csv.header == csv_header::present || (csv.header == csv_header::automatic && words);
    if (header) {
      const char* const behind = row.end + (row.end != rest.data() + rest.size() && *row.end == '\r' ? 1 : 0);
      begin = std::min(text.size(), static_cast<std::size_t>(behind - text.data()) + 1);
      start.lines = lines;
    }
    columns_ =
        detail::plan_columns(header ? fields : std::vector<std::string>(), fields.size(), csv.label, csv.ignore, file);
  }

  detail::table_columns columns_;
  char delimiter_;
  missing_values missing_;
  std::size_t least_;  // features
  detail::float_parser parse_float_ = detail::fastest_float_parser();
};

}  // namespace

std::shared_ptr<const detail::text_format> detail::format_of_csv(std::string_view text, const std::string& file,
                                                                 const csv_options& csv, const read_options& options) {
  return std::make_shared<const csv_format>(text, file, csv, options);
}

dataset read_csv(const std::string& path, const csv_options& csv, const read_options& options) {
  const mapped_file file(path, compressed_files::decoded, options.http);
  return detail::dataset_of_text(file.text(), csv_format(file.text(), path, csv, options), "csv:" + path, options);
}

dataset parse_csv(std::string_view text, const std::string& name, const csv_options& csv, const read_options& options) {
  return detail::dataset_of_text(text, csv_format(text, name, csv, options), name, options);
}

}  // namespace muster::inline v0
