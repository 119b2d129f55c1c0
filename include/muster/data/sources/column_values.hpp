// The columns of typed tables, and the conversion of their values to records. Parquet files and Arrow arrays share this
// code. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/text.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/column_options.hpp>
#include <muster/data/label.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/table_columns.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

enum class column_kind { number, decimal, text, bytes, fixed_bytes, refused };

/// A column of numbers, texts or bytes.
struct table_column {
  std::string name;
  std::string type;  ///< for messages, and for the comparison of tables
  column_kind kind = column_kind::refused;
  dtype number = dtype::none;             ///< type of the numbers
  std::string problem = {};               ///< of a refused column: reason and suggestion
  int index = -1;                         ///< of the column in its table
  std::size_t place = 0;                  ///< a feature's number, or `label_place` or `ignored_place`
  std::size_t offset = 0;                 ///< of the first value in a record, in bytes
  bool is_field = false;                  ///< true: a field with the column's type; false: one of the float32 features
  std::vector<std::uint64_t> shape = {};  ///< of the lists; empty if they have not been read
  std::uint64_t count = 1;                ///< number of values in a record

  [[nodiscard]] std::string quoted() const { return "column '" + name + "'"; }
};

/// The columns that are read, and the structure of their records.
struct table_plan {
  std::vector<table_column> columns = {};
  record_schema schema = {};
  table_names names = {};
  std::uint64_t record_bytes = 0;  ///< 0: records are bytes of any length
};

/// Chooses the columns among `all`. The shapes of lists may be empty until place_columns(). Throws configuration_error
/// for a column that does not exist, and data_error, which names `table`, for a column whose type has no numbers.
[[nodiscard]] table_plan choose_columns(std::vector<table_column> all, const column_options& options,
                                        const std::string& table);
/// Gives the columns their places in a record: first the features, then each field. Throws data_error for bytes of any
/// length beside other columns.
void place_columns(table_plan& plan, const std::string& table);

/// The next rows that are written.
struct column_rows {
  std::byte* bytes;          ///< of all records, each with record_bytes
  std::size_t record_bytes;  ///< 0: records are bytes of any length
  float* labels;
  std::size_t first = 0;                                      ///< number of the first of the next rows
  std::size_t count = 0;                                      ///< number of the next rows
  std::vector<std::pair<std::size_t, std::string>> bad = {};  ///< bad rows, and their problems

  [[nodiscard]] std::byte* record(std::size_t row) const { return bytes + (first + row) * record_bytes; }
  void refuse(std::size_t row, std::string problem) { bad.emplace_back(first + row, std::move(problem)); }
};

/// A column whose values are converted to the values of records.
struct column_target {
  const table_column& column;
  const column_options& options;
  std::string where;  ///< "column 'x' of row group 3", for messages

  void missing(column_rows& rows, std::size_t row) const {
    if (column.place == label_place) return rows.refuse(row, missing_label);
    if (column.kind == column_kind::bytes)
      return rows.refuse(row, "a value is missing in " + where + "; add it, or leave the record out as a bad record");
    if (options.missing == missing_values::fail)
      return rows.refuse(row,
                         "a value is missing in " + where + " (it is null or NaN); choose missing=zero or missing=nan");
    std::byte* const to = rows.record(row) + column.offset;
    for (std::uint64_t k = 0; k < column.count; ++k) put_missing(rows, row, to + k * value_bytes());
  }
  /// Writes zero or NaN as one value of the column.
  void put_missing(column_rows& rows, std::size_t row, std::byte* to) const {
    const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    if (options.missing == missing_values::zero) return static_cast<void>(std::memset(to, 0, value_bytes()));
    if (!column.is_field || column.number == dtype::float32) return put(nan);
    if (column.number == dtype::float64) return put(double{nan});
    if (column.number == dtype::float16) return put(float16(nan));
    rows.refuse(row, "a value is missing in " + where + ", whose type has no NaN; choose missing=zero");
  }
  void too_large(column_rows& rows, std::size_t row) const {
    rows.refuse(row, "a value in " + where + " is larger than a float can hold (a feature is a float32); scale it");
  }
  [[nodiscard]] std::size_t value_bytes() const { return column.is_field ? size_of(column.number) : sizeof(float); }

  /// Puts a number that is written as a text.
  void put_text(column_rows& rows, std::size_t row, std::string_view text) const {
    float value = 0;
    const auto [end, code] = parse_float(text.data(), text.data() + text.size(), value);
    const bool is_number = code == std::errc() && end == text.data() + text.size();
    if (column.place == label_place) {
      rows.labels[rows.first + row] = value + 0.0f;  // -0 is 0
      if (!is_number || !std::isfinite(value) || !is_exact_label(text, value))
        rows.refuse(row, no_label(text, " in " + where));
      return;
    }
    if (is_number && std::isnan(value)) return missing(rows, row);
    if (!is_number || std::isinf(value)) return too_large(rows, row);
    std::memcpy(rows.record(row) + column.offset, &value, sizeof value);
  }
  /// Puts a label that is the name of a class.
  void put_class(column_rows& rows, std::size_t row, std::string_view name) const {
    const auto found = std::ranges::find(options.classes, name);
    rows.labels[rows.first + row] = static_cast<float>(found - options.classes.begin());
    if (found == options.classes.end())
      rows.refuse(row, "the label '" + std::string(name.substr(0, 40)) + "' in " + where +
                           " is not a class; add it to classes, or correct it");
  }
};

/// Converts a stored value to the number that it stands for. Sets `fits` to false if the type cannot hold the value.
template <class Number, class Stored>
[[nodiscard]] Number number_of(const Stored& stored, bool& fits) noexcept {
  if constexpr (std::is_class_v<Stored> && !std::is_same_v<Number, Stored>) {  // a pointer to the bytes of a float16
    Number number;
    std::memcpy(&number, stored.ptr, sizeof number);
    return number;
  } else {
    const auto number = static_cast<Number>(stored);
    if constexpr (sizeof(Number) < sizeof(Stored)) fits &= static_cast<Stored>(number) == stored;
    return number;
  }
}

/// Puts a feature of `row_count` rows, from `first_row` on: a stored value for each row.
template <class Number, class Stored>
void put_feature_column(const column_target& to, column_rows& rows, std::size_t first_row, const Stored* values,
                        std::size_t row_count) {
  std::byte* output = rows.record(first_row) + to.column.offset;
  bool fits = true, finite = true;
  for (std::size_t k = 0; k < row_count; ++k, output += rows.record_bytes) {
    const auto value = static_cast<float>(number_of<Number>(values[k], fits));
    finite &= value - value == 0;  // no call, which code with these options could not inline
    std::memcpy(output, &value, sizeof value);
  }
  if (fits && finite) return;
  for (std::size_t k = 0; k < row_count; ++k) {
    fits = true;
    const auto value = static_cast<float>(number_of<Number>(values[k], fits));
    if (std::isnan(value)) to.missing(rows, first_row + k);
    if (std::isinf(value) || !fits) to.too_large(rows, first_row + k);
  }
}

/// Puts the labels of `row_count` rows, from `first_row` on: a stored value for each first_row.
template <class Number, class Stored>
void put_label_column(const column_target& to, column_rows& rows, std::size_t first_row, const Stored* values,
                      std::size_t row_count) {
  for (std::size_t k = 0; k < row_count; ++k) {
    bool fits = true;
    const Number number = number_of<Number>(values[k], fits);
    float label = 0;
    if constexpr (std::is_same_v<Number, float16>) {
      label = label_of(static_cast<float>(number));
    } else if constexpr (std::is_same_v<Number, bool>) {
      label = number ? 1.0f : 0.0f;
    } else {
      label = label_of(number);
    }
    rows.labels[rows.first + first_row + k] = label;
    if (std::isfinite(label) && fits) continue;
    std::string text;
    if constexpr (std::is_integral_v<Number>) {
      text = std::to_string(number);
    } else if (text = muster::detail::printed("%.17g", static_cast<double>(number));
               std::isnan(static_cast<double>(number))) {
      rows.refuse(first_row + k, missing_label);
      continue;
    }
    rows.refuse(first_row + k, no_label(text, " in " + to.where));
  }
}

/// Puts `count` stored values into a field of one row, from `output` on.
template <class Number, class Stored>
void put_elements(const column_target& to, column_rows& rows, std::size_t row, std::byte* output, const Stored* values,
                  std::size_t count) {
  if constexpr (std::is_same_v<Number, Stored>) {
    std::memcpy(output, values, count * sizeof(Number));
  } else {
    bool fits = true;
    for (std::size_t k = 0; k < count; ++k, output += sizeof(Number)) {
      const Number number = number_of<Number>(values[k], fits);
      std::memcpy(output, &number, sizeof number);
    }
    if (!fits)
      rows.refuse(row, "a value in " + to.where + " is outside of its type (" + to.column.type + "); write it again");
  }
}

/// Adds the bad rows to `bad`, each with the problem of its first bad column, in the order of the rows. `clear(row)`
/// sets the row's values to zero, and `where(row)` returns its location.
void report_bad_rows(column_rows& rows, sample_id first, std::vector<bad_record>& bad, const auto& clear,
                     const auto& where) {
  std::ranges::stable_sort(rows.bad, {}, [](const auto& each) { return each.first; });
  for (std::size_t k = 0; k < rows.bad.size(); ++k) {
    const std::size_t row = rows.bad[k].first;
    if (k != 0 && rows.bad[k - 1].first == row) continue;
    bad.push_back({first + row, where(row), rows.bad[k].second});
    clear(row);
  }
}

inline table_plan choose_columns(std::vector<table_column> all, const column_options& options,
                                 const std::string& table) {
  std::vector<std::string> names, ignore = options.ignore;
  for (const table_column& column : all) names.push_back(column.name);
  for (const std::string& wanted : options.columns) {
    if (std::ranges::find(names, wanted) != names.end()) continue;
    const auto suggestion = closest(wanted, names);
    throw configuration_error("there is no column '" + wanted + "' in " + table + " (it has " +
                              std::to_string(names.size()) + "); " +
                              (suggestion ? "did you mean '" + *suggestion + "'?" : "name another column"));
  }
  if (!options.columns.empty()) {
    for (const std::string& name : names)
      if (std::ranges::find(options.columns, name) == options.columns.end()) ignore.push_back(name);
  }
  const auto places = plan_columns(names, options.label, ignore, table);
  table_plan plan;
  for (std::size_t k = 0; k < all.size(); ++k) {
    table_column& column = all[k];
    column.place = places.roles[k];
    const auto refuse = [&](const std::string& problem) { throw data_error({table}, column.quoted() + " " + problem); };
    if (column.place == ignored_place) continue;
    if (column.kind == column_kind::refused) refuse(column.problem + ", or ignore the column");
    const bool is_text = column.kind == column_kind::text;
    if (column.place != label_place && is_text)
      refuse("has texts (features are numbers); ignore the column, or convert its values");
    if (column.place == label_place) {
      if (is_text && options.classes.empty())
        refuse("has texts (a label is a number); name their classes with classes=NAME,NAME");
      if (!is_text && !options.classes.empty()) refuse("has no texts, which have classes; leave out classes");
      if (column.is_field || column.kind == column_kind::bytes)
        refuse("has lists or bytes (a label is one number); choose another label");
    }
    plan.columns.push_back(std::move(column));
  }
  plan.schema.classes = plan.names.classes = options.classes;
  if (!options.label.empty()) plan.schema.labels = {"label"};
  plan.names.label = places.names.label;
  return plan;
}

inline void place_columns(table_plan& plan, const std::string& table) {
  std::uint64_t features = 0;
  for (table_column& column : plan.columns) {
    if (column.kind == column_kind::bytes) {
      plan.schema.form = record_form::bytes;
      if (plan.columns.size() - plan.schema.labels.size() == 1) return;
      throw data_error({table}, column.quoted() +
                                    " has bytes of any length, which are a whole record; name it alone with columns=" +
                                    column.name + ", or ignore it");
    }
    if (column.place == label_place || column.is_field) continue;
    column.offset = features++ * sizeof(float);
    plan.names.features.push_back(column.name);
  }
  if (features != 0) plan.schema.fields.push_back({"features", dtype::float32, {features}});
  plan.record_bytes = features * sizeof(float);
  for (table_column& column : plan.columns) {
    if (!column.is_field) continue;
    const auto size = checked_product(size_of(column.number), column.shape);
    constexpr std::uint64_t most = std::uint64_t{1} << 30;
    if (size.value_or(0) == 0 || *size > most)
      throw data_error({table}, column.quoted() + " has no bytes in a row, or more than 1 GiB; ignore it");
    column.count = *size / size_of(column.number);
    column.offset = plan.record_bytes;
    plan.record_bytes += *size;
    plan.schema.fields.push_back({column.name, column.number, column.shape});
    plan.names.features.clear();  // the names are those of single numbers
  }
}

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>
