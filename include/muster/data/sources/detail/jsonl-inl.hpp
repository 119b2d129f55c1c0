#pragma once

#include <muster/data/sources/jsonl.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/label.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/table_columns.hpp>
#include <muster/data/sources/text_format.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

/// Number of lines that decide the columns.
inline constexpr int jsonl_lines_of_columns = 100;
inline constexpr std::size_t most_jsonl_features = std::size_t{1} << 20;  // each has a name

/// A key of the objects, and the place of its values in a row.
struct json_column {
  std::string name;
  std::size_t role = 0;   // a feature, or `ignored_place` or `label_place`
  std::size_t first = 0;  // number of the first feature
  std::size_t count = 1;  // number of features
  bool is_sized = false;  // true if a value has decided the count
};

struct json_columns {
  std::vector<json_column> all;
  std::map<std::string, std::size_t, std::less<>> places;  // number of each key's column
  missing_values missing = missing_values::fail;
  std::vector<std::string> classes;  // of the label
};

/// A position in a line, which the JSON parser advances and the owner of `*read` sees.
struct json_position {
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  reference operator*() const { return *at; }
  json_position& operator++() {
    *read = ++at;
    return *this;
  }
  friend bool operator==(const json_position& a, const json_position& b) { return a.at == b.at; }
  friend bool operator!=(const json_position& a, const json_position& b) { return a.at != b.at; }

  const char* at;
  const char** read;
};

/// A receiver of the events of the JSON parser: the common part of the two readers of a line.
class json_line : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// Reads a line. Returns the problem, or an empty text. `column` becomes the column of the problem.
  std::string read(std::string_view line, std::uint64_t& column) {
    const char* at = line.data();
    const char* const end = at + line.size();
    problem_.clear();
    depth_ = 0;
    if (!nlohmann::json::sax_parse(json_position{at, &at}, json_position{end, &at}, this) && problem_.empty())
      problem_ = "this line is not JSON (RFC 8259); correct it";
    column = static_cast<std::uint64_t>(at - line.data()) + 1;
    return problem_;
  }

  bool start_object(std::size_t) override { return depth_++ == 0 || other("an object"); }
  bool end_object() override { return --depth_ > 1 || end_value(); }
  bool start_array(std::size_t) override {
    return depth_++ != 0 ? begin_array() : refuse("this line is an array (a sample is an object); correct it");
  }
  bool end_array() override { return --depth_ > 1 || end_value(); }
  bool key(string_t& name) override { return depth_ != 1 || begin_value(name); }
  bool null() override {
    return scalar([&] { return missing(); });
  }
  bool boolean(bool value) override {
    return scalar([&] { return number(value ? 1.0f : 0.0f, value ? "1" : "0"); });
  }
  bool number_integer(number_integer_t value) override { return whole(value); }
  bool number_unsigned(number_unsigned_t value) override { return whole(value); }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar([&] {
      float value = 0;
      if (parse_float(text.data(), text.data() + text.size(), value).ec != std::errc())
        return refuse("the number " + detail::quoted(text) + " is too large for a float; scale it");
      return number(value, text);
    });
  }
  bool string(string_t& text) override {
    return scalar([&] { return this->text(text); });
  }
  bool binary(binary_t&) override { return refuse("there are bytes"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 protected:
  bool refuse(const std::string& problem) {
    problem_ = problem;
    return false;
  }
  [[nodiscard]] int depth() const noexcept { return depth_; }

 private:
  bool scalar(const auto& take) {
    if (depth_ == 0) return refuse("this line is a single value (a sample is an object); correct it");
    return take() && (depth_ != 1 || end_value());
  }
  template <class T>
  bool whole(T value) {
    return scalar([&] { return number(static_cast<float>(value), wants_text() ? std::to_string(value) : ""); });
  }
  virtual bool begin_value(const std::string& name) = 0;  // of a key
  virtual bool end_value() = 0;                           // of a key, and of the line
  virtual bool begin_array() = 0;
  virtual bool missing() = 0;
  virtual bool number(float value, const std::string& written) = 0;
  [[nodiscard]] virtual bool wants_text() const { return false; }  // as the argument `written` for whole numbers
  virtual bool text(const std::string& value) = 0;
  virtual bool other(const char* kind) = 0;

  std::string problem_;
  int depth_ = 0;  // number of open objects and arrays
};

/// Finds the keys of lines, and the sizes of their arrays.
class json_survey final : public json_line {
 public:
  explicit json_survey(json_columns& columns) : columns_(columns) {}

 private:
  bool begin_value(const std::string& name) override {
    column_ = columns_.places.try_emplace(name, columns_.all.size()).first->second;
    if (column_ == columns_.all.size()) columns_.all.push_back({.name = name});
    is_array_ = is_null_ = false;
    count_ = 0;
    return true;
  }
  bool end_value() override {
    if (depth() == 0 || is_null_) return true;
    json_column& column = columns_.all[column_];
    if (!std::exchange(column.is_sized, true) && is_array_) column.count = count_;
    return true;
  }
  bool begin_array() override { return is_array_ = true; }
  bool missing() override {
    is_null_ = depth() == 1;
    return ++count_, true;
  }
  bool number(float, const std::string&) override { return ++count_, true; }
  bool text(const std::string&) override { return true; }
  bool other(const char*) override { return true; }

  json_columns& columns_;
  std::size_t column_ = 0, count_ = 0;
  bool is_array_ = false, is_null_ = false;
};

/// Reads lines as rows.
class json_row final : public json_line {
 public:
  explicit json_row(const json_columns& columns) : columns_(columns), seen_(columns.all.size()) {}

  std::string read(std::string_view line, std::span<float> values, float& label, std::uint64_t& column) {
    values_ = values;
    label_ = &label;
    next_ = 0;
    seen_.assign(seen_.size(), false);
    return json_line::read(line, column);
  }

 private:
  bool begin_value(const std::string& name) override {
    if (next_ == seen_.size() || columns_.all[next_].name != name) {  // keys usually have the same order in all lines
      const auto found = columns_.places.find(name);
      if (found == columns_.places.end())
        return refuse("the key " + detail::quoted(name) + " is not in the first " +
                      std::to_string(jsonl_lines_of_columns) + " lines (their keys are the columns); ignore it");
      next_ = found->second;
    }
    if (seen_[next_]) return refuse("the key " + detail::quoted(name) + " is there twice; remove one");
    seen_[next_] = true;
    column_ = &columns_.all[next_++];
    count_ = 0;
    return true;
  }
  bool end_value() override {
    if (depth() == 0) return fill_absent();
    if (column_->role == ignored_place || column_->role == label_place || count_ == column_->count) return true;
    return refuse("there are " + std::to_string(count_) + " values in " + detail::quoted(column_->name) +
                  " (in the first lines there are " + std::to_string(column_->count) + "); correct it");
  }
  bool fill_absent() {
    for (std::size_t k = 0; k < seen_.size(); ++k) {
      column_ = &columns_.all[k];
      count_ = 0;
      if (!seen_[k] && column_->role != ignored_place && !fill(column_->count)) return false;
    }
    return true;
  }
  bool fill(std::size_t count) {
    if (column_->role == label_place) return refuse(missing_label);
    if (columns_.missing == missing_values::fail)
      return refuse("a value is missing in " + detail::quoted(column_->name) +
                    " (the key is absent, or its value is null); choose missing=zero or missing=nan");
    const float value = columns_.missing == missing_values::zero ? 0 : std::numeric_limits<float>::quiet_NaN();
    while (count-- > 0) put(value);
    return true;
  }
  bool put(float value) {
    if (count_ < column_->count) values_[column_->first + count_] = value;
    return ++count_, true;
  }
  bool begin_array() override { return column_->role != label_place || other("an array"); }
  bool missing() override { return column_->role == ignored_place || fill(depth() == 1 ? column_->count : 1); }
  bool wants_text() const override { return column_->role == label_place; }
  bool number(float value, const std::string& written) override {
    if (column_->role == ignored_place) return true;
    if (column_->role != label_place) return put(value);
    if (!columns_.classes.empty()) return other("a number");
    *label_ = value + 0.0f;  // -0 is 0
    return is_exact_label(written, value) || refuse(no_label(detail::quoted(written)));
  }
  bool text(const std::string& value) override {
    if (column_->role != label_place || columns_.classes.empty()) return other("a text");
    const auto found = std::ranges::find(columns_.classes, value);
    *label_ = static_cast<float>(found - columns_.classes.begin());
    return found != columns_.classes.end() ||
           refuse("the label " + detail::quoted(value) + " is not a class; add it to classes, or correct it");
  }
  bool other(const char* kind) override {
    if (column_->role == ignored_place) return true;
    const std::string name = detail::quoted(column_->name) + " is " + kind;
    if (column_->role != label_place)
      return refuse("the value of " + name + " (features are numbers); ignore the key, or convert the value");
    return refuse("the label " + name + " (a label is a number, or, with classes=NAME,NAME, a text); correct it");
  }

  const json_columns& columns_;
  std::vector<bool> seen_;  // whether the row has the column
  std::span<float> values_;
  float* label_ = nullptr;
  std::size_t next_ = 0, count_ = 0;
  const json_column* column_ = nullptr;
};

class jsonl_format final : public text_format {
 public:
  jsonl_format(std::string_view text, std::string path, const jsonl_options& jsonl, const read_options& options)
      : text_format(std::move(path)), least_(options.min_features) {
    if (options.layout == layout::sparse)
      throw configuration_error(file + " cannot be sparse (its rows are dense); leave out the layout");
    if (jsonl.label.empty() && !jsonl.classes.empty())
      throw configuration_error(file + " has no label (classes are the values of a label); name it with label=KEY");
    if (text.starts_with("\xef\xbb\xbf")) begin = 3;
    columns_.missing = jsonl.missing;
    columns_.classes = columns.classes = jsonl.classes;
    find_columns(text.substr(begin));
    plan(jsonl);
    digest mode;
    mode.add(static_cast<std::uint64_t>(jsonl.missing));
    for (const json_column& each : columns_.all) mode.add(each.name).add(std::uint64_t{each.role}).add(each.count);
    read_mode = mode.value();
  }

  text_survey survey(std::string_view piece) const override {
    text_survey found;
    for_each_line(piece, [&](std::string_view line) {
      ++found.lines;
      found.rows += is_blank(line) ? 0 : 1;
    });
    return found;
  }

  std::pair<std::size_t, bool> shape(const text_survey& total) const override {
    if (total.rows == 0) throw data_error({file}, "has no rows (all lines are blank); check how it was made");
    return {std::max(features_, least_), true};
  }

  void parse(std::string_view piece, const text_survey& before, const row_places& rows) const override {
    json_row reader(columns_);
    data_location place{file, before.lines};
    std::size_t at = 0;
    for_each_line(piece, [&](std::string_view line) {
      ++place.line;
      if (is_blank(line)) return;
      try {
        const std::string problem = reader.read(line, rows.row(at), rows.labels[at], place.column);
        if (!problem.empty()) throw data_error(place, problem);
      } catch (const data_error& error) {
        rows.refuse(at, before.rows + at, error);
      }
      ++at;
    });
  }

 private:
  static bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }
  static void for_each_line(std::string_view text, const auto& take) {
    while (!text.empty()) {
      const auto end = std::min(text.find('\n'), text.size());
      take(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  /// Finds the keys of the first lines and the sizes of their arrays. Lines with faults are left to parse(). Throws the
  /// first fault if no line has keys.
  void find_columns(std::string_view text) {
    std::string first_problem = "has no keys in its first lines; check how it was made";
    data_location place{file}, first_place{file};
    for (int rows = 0; rows < jsonl_lines_of_columns && !text.empty();) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      ++place.line;
      if (is_blank(line)) continue;
      ++rows;
      json_columns found = columns_;
      const std::string problem = json_survey(found).read(line, place.column);
      if (problem.empty()) columns_ = std::move(found);
      if (problem.empty() || first_place.line != 0) continue;
      first_problem = problem;
      first_place = place;
    }
    if (columns_.all.empty()) throw data_error(first_place, first_problem);
  }

  /// Gives the columns their places.
  void plan(const jsonl_options& jsonl) {
    std::vector<std::string> names;
    for (const json_column& column : columns_.all) names.push_back(column.name);
    for (const std::string& key : jsonl.ignore) {
      if (!columns_.places.try_emplace(key, columns_.all.size()).second) continue;
      names.push_back(key);
      columns_.all.push_back({.name = key});
      notes.push_back("the ignored key " + detail::quoted(key) + " of " + file + " is in none of the first " +
                      std::to_string(jsonl_lines_of_columns) + " lines");
    }
    const table_columns planned = plan_columns(names, jsonl.label, jsonl.ignore, file);
    columns.label = planned.names.label;
    for (std::size_t k = 0; k < names.size(); ++k) {
      json_column& column = columns_.all[k];
      column.role = planned.roles[k];
      if (column.role >= label_place) continue;
      column.first = std::exchange(features_, features_ + column.count);
      if (features_ > most_jsonl_features)
        throw data_error({file}, "has " + std::to_string(features_) + " numbers in a line (at most " +
                                     std::to_string(most_jsonl_features) + " are supported); ignore " +
                                     detail::quoted(column.name));
      for (std::size_t part = 0; part < column.count; ++part)
        columns.features.push_back(column.name + (column.count == 1 ? "" : "." + std::to_string(part)));
    }
  }

  json_columns columns_;
  std::size_t features_ = 0;
  std::size_t least_;  // smallest number of features
};

}  // namespace detail

MUSTER_INLINE std::shared_ptr<const detail::text_format> detail::format_of_jsonl(std::string_view text,
                                                                                 const std::string& file,
                                                                                 const jsonl_options& jsonl,
                                                                                 const read_options& options) {
  return std::make_shared<const detail::jsonl_format>(text, file, jsonl, options);
}

MUSTER_INLINE dataset read_jsonl(const std::string& path, const jsonl_options& jsonl, const read_options& options) {
  const mapped_file file(path, compressed_files::decoded, options.http);
  return detail::dataset_of_text(file.text(), detail::jsonl_format(file.text(), path, jsonl, options), "jsonl:" + path,
                                 options);
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
