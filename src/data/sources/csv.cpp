#include <muster/data/sources/csv.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/data/dataset_builder.hpp>
#include "csv_fields.hpp"
#include "decimal.hpp"
#include "scan.hpp"
#include "text_records.hpp"

// The text is cut into pieces at the ends of rows, the rows of each are counted, and the pieces are parsed right into
// the result, at the same time. A newline between quotes ends no row; where there are quotes, those before a place say
// whether it is between them.

namespace muster::inline v0 {
namespace {

using namespace detail::csv;
using detail::ignored;
using detail::label_place;

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

// As first_lines(), but not up to a newline between quotes.
std::size_t first_rows(std::string_view text, std::size_t piece_bytes) {
  std::size_t size = std::min(piece_bytes, text.size()) - 1;
  bool open = detail::count_byte(text.substr(0, size), '"') % 2 != 0;
  while (size < text.size() && (open || text[size] != '\n')) open ^= text[size++] == '"';
  return std::min(size + 1, text.size());
}

bool is_missing(std::string_view word) {
  constexpr std::string_view known[] = {"", "NA", "N/A", "nan", "NaN", "NULL", "null", "None", "?"};
  return std::find(std::begin(known), std::end(known), word) != std::end(known);
}

// A number that is not simply there: quoted, missing or wrong.
float read_unusual(const table_plan& plan, const std::string& file, const csv_row& row, const csv_field& field,
                   std::size_t column) {
  const std::string_view word = field.content;
  float value = 0;
  const auto [end, code] = detail::parse_float(word.data(), word.data() + word.size(), value);
  if (!word.empty() && code == std::errc() && end == word.data() + word.size()) return value;
  const std::string where = " in column " + std::to_string(column);
  if (is_missing(word)) {
    if (plan.missing == missing_values::zero) return 0;
    if (plan.missing == missing_values::nan) return std::numeric_limits<float>::quiet_NaN();
    fail(file, row, word.data(),
         "a value is missing" + where + " (there is nothing, or a word for it); choose missing=zero or missing=nan");
  }
  if (code == std::errc::result_out_of_range) {
    fail(file, row, word.data(),
         "the number " + detail::quoted(word) + where + " is too large for a float; scale the column");
  }
  fail(file, row, word.data(),
       detail::quoted(word) + where + " is not a number; correct it, or leave the column out with ignore");
}

template <class Store>
void parse_row(const table_plan& plan, const std::string& file, const csv_row& row, Store store) {
  const char* p = row.begin;
  const std::size_t count = plan.places.size();
  for (std::size_t column = 0; column < count; ++column) {
    const std::size_t place = plan.places[column];
    const char* end = nullptr;
    if (place != ignored) {
      float value = 0;
      const char* const first = plan.skip_blanks(p, row.end);
      const auto read = detail::parse_float(first, row.end, value);
      end = read.ptr;
      const auto ends_field = [&] { return end == row.end || *end == plan.delimiter; };
      bool simple = read.ec == std::errc();
      if (simple && !ends_field()) {
        end = plan.skip_blanks(end, row.end);
        simple = ends_field();
      }
      if (!simple) {
        const csv_field field = take_field(plan, file, row, p);
        value = read_unusual(plan, file, row, field, column);
        end = field.end;
      }
      store(place, value);
    } else {
      end = take_field(plan, file, row, p).end;
    }
    if (column + 1 == count) {
      if (end == row.end) return;
      fail(file, row, end,
           "the row has more than " + std::to_string(count) +
               " fields (as many as the first row has); correct it, or quote fields with delimiters");
    }
    if (end == row.end) {
      fail(file, row, end,
           "the row ends after " + std::to_string(column + 1) + " fields (the first row has " + std::to_string(count) +
               "); correct it");
    }
    p = end + 1;
  }
}

// What the first row says, and how much of the text is not data.
struct beginning {
  table_plan plan;
  std::size_t bytes = 0;
  std::uint64_t lines = 0;
};

beginning read_beginning(std::string_view text, const std::string& file, const csv_options& csv) {
  if (csv.delimiter == '"' || csv.delimiter == '\n' || csv.delimiter == '\r' || detail::is_digit(csv.delimiter) ||
      std::strchr("+-.eE", csv.delimiter) != nullptr) {
    throw configuration_error("a table cannot be delimited by '" + std::string(1, csv.delimiter) +
                              "' (it is part of numbers or quotes); choose a comma, a semicolon, a tab or the like");
  }
  beginning found{{{}, csv.delimiter, csv.missing}, 0, 0};
  if (text.starts_with(byte_order_mark)) found.bytes = byte_order_mark.size();
  const std::string_view rest = text.substr(found.bytes);
  csv_row row{};
  std::uint64_t lines = 0;
  // Of large text only as much is looked at as the first row takes.
  for (std::size_t looked_at = std::size_t{1} << 20;; looked_at *= 2) {
    const std::string_view part = rest.substr(0, looked_at);
    row_reader rows(part, 0);
    bool there = true;
    do {
      there = rows.next(row);
    } while (there && found.plan.blank(row));
    lines = rows.lines();
    const bool whole = part.size() == rest.size();
    if (there && (whole || row.end + 1 < part.data() + part.size())) break;
    if (whole) throw data_error({file}, "has no rows (blank lines are all there is); check how it was made");
  }

  std::vector<std::string> fields;
  bool words = false;
  for (const char* p = row.begin;; ++p) {
    const csv_field field = take_field(found.plan, file, row, p);
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
    found.bytes = std::min(text.size(), static_cast<std::size_t>(behind - text.data()) + 1);
    found.lines = lines;
  }
  static_cast<detail::table_columns&>(found.plan) =
      detail::plan_columns(header ? fields : std::vector<std::string>(), fields.size(), csv.label, csv.ignore, file);
  return found;
}

detail::text_survey look_over(const table_plan& plan, std::string_view piece) {
  row_reader rows(piece, 0);
  detail::text_survey found;
  for (csv_row row{}; rows.next(row);) found.rows += plan.blank(row) ? 0 : 1;
  found.lines = rows.lines();
  found.quotes = rows.quotes();
  return found;
}

// Parses the rows of a piece that `before` comes before to where place(row number) says, a row of floats and a label.
// Bad rows are zeros, and noted in `bad`; without it (null) they are errors.
template <class Place>
void parse_rows(const table_plan& plan, const std::string& file, std::string_view piece,
                const detail::text_survey& before, std::vector<bad_record>* bad, const Place& place) {
  row_reader rows(piece, before.lines);
  std::uint64_t number = before.rows;
  for (csv_row row{}; rows.next(row);) {
    if (plan.blank(row)) continue;
    const std::pair<std::span<float>, float*> to = place(number);
    try {
      parse_row(plan, file, row, [&](std::size_t column, float value) {
        (column == label_place ? *to.second : to.first[column]) = value;
      });
    } catch (const data_error& error) {
      if (bad == nullptr) throw;
      *to.second = 0;
      std::fill(to.first.begin(), to.first.end(), 0.0f);
      bad->push_back({number, error.where(), error.problem()});
    }
    ++number;
  }
}

void require_dense(const read_options& options, const std::string& file) {
  if (options.layout != layout::sparse) return;
  throw configuration_error("a table is dense (" + file + " cannot be read with the sparse layout); leave the layout");
}

}  // namespace

dataset detail::parse_csv(std::string_view text, const std::string& file, std::string name, const csv_options& csv,
                          const read_options& options, std::size_t piece_bytes) {
  require_dense(options, file);
  const beginning start = read_beginning(text, file, csv);
  const table_plan& plan = start.plan;
  const bool quotes = text.find('"') != std::string_view::npos;
  const auto pieces = cut_text(text.substr(start.bytes), [&](std::string_view rest) {
    return quotes ? first_rows(rest, piece_bytes) : first_lines(rest, piece_bytes);
  });
  std::vector<text_survey> before;
  const text_survey total = look_over_pieces(pieces.size(), options.threads, before, {.lines = start.lines},
                                             [&](std::size_t i) { return look_over(plan, pieces[i]); });
  if (total.rows == 0) throw data_error({file}, "has no rows but the header; check how it was made");

  const std::size_t features = std::max(plan.features, options.min_features);
  dataset_builder builder = make_builder(std::move(name), file, total, features, true);
  std::vector<std::vector<bad_record>> bad(pieces.size());
  parallel_for(pieces.size(), options.threads, [&](std::size_t i) {
    parse_rows(plan, file, pieces[i], before[i], options.keep_bad_records ? &bad[i] : nullptr,
               [&](std::uint64_t row) { return std::pair(builder.row(row), &builder.labels()[row]); });
  });
  std::vector<bad_record> all;
  for (auto& piece : bad) std::move(piece.begin(), piece.end(), std::back_inserter(all));
  builder.set_bad(std::move(all));
  return builder.finish(options.threads);
}

any_record_source detail::csv_records(std::shared_ptr<const mapped_file> text, const std::string& file,
                                      const csv_options& csv, const read_options& options, const text_limits& limits) {
  require_dense(options, file);
  beginning start = read_beginning(text->text(), file, csv);
  const auto plan = std::make_shared<const table_plan>(std::move(start.plan));
  digest way;
  for (const std::size_t place : plan->places) way.add(std::uint64_t{place});
  text_format format;
  format.name = "csv:" + file;
  format.file = file;
  format.begin = start.bytes;
  format.start.lines = start.lines;
  format.way = way.add(static_cast<std::uint64_t>(plan->missing)).value();
  format.first_piece = [](std::string_view rest, std::size_t bytes, bool quotes) {
    return quotes ? first_rows(rest, bytes) : first_lines(rest, bytes);
  };
  format.look_over = [plan](std::string_view piece) { return look_over(*plan, piece); };
  format.schema = [file, width = std::max(plan->features, options.min_features)](const text_survey& total) {
    if (total.rows == 0) throw data_error({file}, "has no rows but the header; check how it was made");
    return dense_schema(width);
  };
  format.parse = [plan, file](std::string_view piece, const text_survey& before, record_block& to) {
    parse_rows(*plan, file, piece, before, &to.bad,
               [&](std::uint64_t row) { return std::pair(to.row(row - before.rows), &to.labels[row - before.rows]); });
  };
  return any_record_source(records_of_text(std::move(text), std::move(format), options, limits));
}

any_record_source csv_source(const std::string& path, const csv_options& csv, const read_options& options) {
  auto file = std::make_shared<const mapped_file>(path);
  if (file->text().size() > detail::most_text_in_memory)
    return detail::csv_records(std::move(file), path, csv, options, {});
  return any_record_source(
      detail::parse_csv(file->text(), path, "csv:" + path, csv, options, detail::text_piece_bytes));
}

dataset read_csv(const std::string& path, const csv_options& csv, const read_options& options) {
  const mapped_file file(path);
  return detail::parse_csv(file.text(), path, "csv:" + path, csv, options, detail::text_piece_bytes);
}

dataset parse_csv(std::string_view text, const std::string& name, const csv_options& csv, const read_options& options) {
  return detail::parse_csv(text, name, name, csv, options, detail::text_piece_bytes);
}

}  // namespace muster::inline v0
