// The rows of a table and the fields of a row; private to the CSV reader.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/sources/csv.hpp>
#include "table_columns.hpp"

namespace muster::inline v0::detail::csv {

/// A row without its line end, and the number of its first line.
struct csv_row {
  const char* begin;
  const char* end;
  std::uint64_t line;
};

/// Takes rows off a text, blank ones too.
class row_reader {
 public:
  row_reader(std::string_view text, std::uint64_t lines_before)
      : at_(text.data()),
        end_(at_ + text.size()),
        line_(lines_before + 1),
        quotes_(text.find('"') != std::string_view::npos) {}

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
  // Whether there are any in the text.
  bool quotes() const { return quotes_; }

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

struct table_plan : table_columns {
  char delimiter;
  missing_values missing;

  bool is_blank(char c) const { return (c == ' ' || c == '\t') && c != delimiter; }
  const char* skip_blanks(const char* p, const char* end) const {
    while (p != end && is_blank(*p)) ++p;
    return p;
  }
  bool blank(const csv_row& row) const {
    const char* const p = skip_blanks(row.begin, row.end);
    return p == row.end;
  }
};

/// One field: what is between its delimiters, or between its quotes.
struct csv_field {
  std::string_view content;
  const char* end;  // the delimiter, or the end of the row
};

[[noreturn]] inline void fail(const std::string& file, const csv_row& row, const char* at, const std::string& text) {
  const char* const newline =
      std::find(std::make_reverse_iterator(at), std::make_reverse_iterator(row.begin), '\n').base();
  const auto lines = static_cast<std::uint64_t>(std::count(row.begin, newline, '\n'));
  throw data_error({file, row.line + lines, static_cast<std::uint64_t>(at - newline) + 1}, text);
}

inline csv_field take_field(const table_plan& plan, const std::string& file, const csv_row& row, const char* p) {
  p = plan.skip_blanks(p, row.end);
  csv_field field;
  if (p != row.end && *p == '"') {
    const char* const open = p++;
    while (true) {
      p = std::find(p, row.end, '"');
      if (p == row.end) fail(file, row, open, "a quote is not closed (the file ends before it is); close it");
      if (p + 1 == row.end || p[1] != '"') break;
      p += 2;
    }
    field.content = {open + 1, static_cast<std::size_t>(p - open - 1)};
    field.end = plan.skip_blanks(p + 1, row.end);
    if (field.end != row.end && *field.end != plan.delimiter) {
      fail(file, row, field.end,
           "there is text behind a closing quote (a quoted field ends there); write \"\" for a "
           "quote within quotes");
    }
    return field;
  }
  field.end = std::find(p, row.end, plan.delimiter);
  const char* last = field.end;
  while (last != p && plan.is_blank(last[-1])) --last;
  field.content = {p, static_cast<std::size_t>(last - p)};
  return field;
}

}  // namespace muster::inline v0::detail::csv
