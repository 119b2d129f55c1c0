// The arrays of Arrow's C data interface: the columns of a schema, and readers of their values. Private to muster's own
// sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/number.hpp>
#include <muster/data/arrow.hpp>
#include <muster/data/sources/column_values.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// A column in the schema of a table.
struct arrow_column {
  std::vector<std::int64_t> path;            ///< numbers of the children from the table to the column
  std::vector<const ArrowSchema*> levels{};  ///< the column's own type, then the types of its lists' elements
  std::string_view format{};                 ///< of the values
  bool is_dictionary = false;
  int scale = 0;  ///< of decimals
  int width = 0;  ///< of decimals, in bytes
};

/// Returns the type of numbers with this format.
inline dtype arrow_number(std::string_view format) noexcept {
  constexpr std::string_view formats = "bcCsSiIlLefg";
  constexpr dtype types[] = {dtype::boolean, dtype::int8,    dtype::uint8,   dtype::int16,
                             dtype::uint16,  dtype::int32,   dtype::uint32,  dtype::int64,
                             dtype::uint64,  dtype::float16, dtype::float32, dtype::float64};
  const auto at = format.size() == 1 ? formats.find(format[0]) : std::string_view::npos;
  return at == std::string_view::npos ? dtype::none : types[at];
}

/// Sets the kind of a column by its format.
inline void set_arrow_kind(table_column& column, arrow_column& arrow) {
  const ArrowSchema* values = arrow.levels.back();
  arrow.is_dictionary = values->dictionary != nullptr;
  if (arrow.is_dictionary) values = values->dictionary;
  const std::string_view format = arrow.format = values->format;
  const bool is_list = arrow.levels.size() > 1;
  column.type = format;
  column.number = arrow_number(format);
  column.is_field = is_list;
  if (column.number != dtype::none) {
    column.kind = column_kind::number;
  } else if (format.starts_with("d:")) {
    const auto words = muster::detail::split(format.substr(2), ',');
    column.kind = column_kind::decimal;
    arrow.scale = words.size() > 1 ? parse_number<int>(words[1]).value_or(0) : 0;
    arrow.width = words.size() > 2 ? parse_number<int>(words[2]).value_or(0) / 8 : 16;
    if (arrow.width > 16 || arrow.width < 4)
      column.problem =
          "has decimals of " + std::to_string(8 * arrow.width) + " bits; cast them to decimal128 or to float64";
  } else if (format == "u" || format == "U" || format == "vu") {
    column.kind = column_kind::text;
  } else if (format == "z" || format == "Z" || format == "vz") {
    column.kind = column_kind::bytes;
  } else if (format.starts_with("w:")) {
    column.kind = column_kind::fixed_bytes;
    column.number = dtype::uint8;
    column.is_field = true;
    column.shape = {parse_number<std::uint64_t>(format.substr(2)).value_or(0)};
  } else {
    column.problem = format.starts_with("t") ? "has times (features are numbers); cast them to numbers, such as seconds"
                                             : "has values of the format '" + std::string(format) +
                                                   "' (columns are numbers, lists of numbers, or bytes); convert them";
  }
  if (arrow.is_dictionary && (column.kind == column_kind::bytes || column.kind == column_kind::fixed_bytes))
    column.problem = "has a dictionary of bytes; decode it";
  if (is_list && (column.kind != column_kind::number || arrow.is_dictionary))
    column.problem = "has lists of values that are not numbers; convert them to lists of numbers";
  if (!column.problem.empty()) column.kind = column_kind::refused;
}

/// Adds the columns of a struct, and those of structs in the struct.
inline void add_arrow_columns(const ArrowSchema& schema, const std::string& prefix,
                              const std::vector<std::int64_t>& path, std::vector<table_column>& columns,
                              std::vector<arrow_column>& arrow) {
  for (std::int64_t child = 0; child < schema.n_children; ++child) {
    const ArrowSchema* type = schema.children[child];
    std::vector<std::int64_t> own_path = path;
    own_path.push_back(child);
    const std::string name = prefix + (type->name == nullptr ? "" : type->name);
    if (std::string_view(type->format) == "+s") {
      add_arrow_columns(*type, name + ".", own_path, columns, arrow);
      continue;
    }
    table_column column{.name = name, .type = {}};
    arrow_column found{.path = std::move(own_path)};
    std::vector<std::uint64_t> shape;
    for (;; type = type->children[0]) {
      found.levels.push_back(type);
      const std::string_view format = type->format;
      if (!format.starts_with("+w:") && format != "+l" && format != "+L") break;
      shape.push_back(format[1] == 'w' ? parse_number<std::uint64_t>(format.substr(3)).value_or(0) : 0);
    }
    set_arrow_kind(column, found);
    if (found.levels.size() > 1 && std::ranges::find(shape, 0U) == shape.end()) column.shape = std::move(shape);
    column.index = static_cast<int>(columns.size());
    columns.push_back(std::move(column));
    arrow.push_back(std::move(found));
  }
}

/// The elements of an array, of which element `offset` is the first.
struct arrow_part {
  const ArrowArray* array = nullptr;
  std::int64_t offset = 0;

  template <class T>
  [[nodiscard]] const T* buffer(std::int64_t number) const {
    return static_cast<const T*>(array->buffers[number]);
  }
  [[nodiscard]] bool is_null(std::int64_t row) const {
    return array->n_buffers > 0 && array->null_count != 0 && array->buffers[0] != nullptr &&
           !bit(buffer<std::uint8_t>(0), offset + row);
  }
  [[nodiscard]] static bool bit(const std::uint8_t* bits, std::int64_t at) {
    return ((bits[at / 8] >> (at % 8)) & 1) != 0;
  }
  /// Returns the texts or bytes of an element.
  [[nodiscard]] std::string_view text(std::string_view format, std::int64_t row) const {
    const std::int64_t at = offset + row;
    const auto between = [&](const auto* ends) {
      return std::string_view(buffer<char>(2) + ends[at], static_cast<std::size_t>(ends[at + 1] - ends[at]));
    };
    if (format == "u" || format == "z") return between(buffer<std::int32_t>(1));
    if (format == "U" || format == "Z") return between(buffer<std::int64_t>(1));
    const char* const view = buffer<char>(1) + 16 * at;  // a length, and the text or its beginning, buffer and offset
    std::array<std::int32_t, 4> words{};
    std::memcpy(words.data(), view, sizeof words);
    constexpr std::int32_t most_inline = 12;
    if (words[0] <= most_inline) return {view + 4, static_cast<std::size_t>(words[0])};
    return {buffer<char>(2 + words[2]) + words[3], static_cast<std::size_t>(words[0])};
  }
};

/// Returns a decimal as text: its whole number and the power of ten.
inline std::string arrow_decimal(const char* bytes, const arrow_column& arrow) {
  __extension__ using wide = __int128;
  __extension__ using unsigned_wide = unsigned __int128;
  wide number = 0;
  std::memcpy(&number, bytes, static_cast<std::size_t>(arrow.width));
  const int unused = 128 - 8 * arrow.width;
  number = static_cast<wide>(static_cast<unsigned_wide>(number) << unused) >> unused;  // extends the sign
  const bool negative = number < 0;
  std::string digits;
  do {
    const int digit = static_cast<int>(number % 10);
    digits += static_cast<char>('0' + (negative ? -digit : digit));
    number /= 10;
  } while (number != 0);
  if (negative) digits += '-';
  std::ranges::reverse(digits);
  return digits + "e" + std::to_string(-arrow.scale);
}

/// A reader of a column in a batch.
struct arrow_reader {
  const column_target& to;
  const arrow_column& arrow;
  std::vector<arrow_part> parents;  ///< the structs around the column
  arrow_part column;

  arrow_reader(const column_target& target, const arrow_column& of, const ArrowArray& batch) : to(target), arrow(of) {
    column = {&batch, batch.offset};
    for (const std::int64_t child : of.path) {
      parents.push_back(column);
      column = {column.array->children[child], column.offset + column.array->children[child]->offset};
    }
  }
  [[nodiscard]] std::string_view bytes_of(std::int64_t row) const { return column.text(arrow.format, row); }
  [[nodiscard]] bool is_null(std::int64_t row) const {
    return column.is_null(row) ||
           std::ranges::any_of(parents, [&](const arrow_part& part) { return part.is_null(row); });
  }
  /// Puts `rows.count` elements of the batch, from element `from` on, into the next rows.
  void put(column_rows& rows, std::int64_t from, std::vector<std::byte>* bytes = nullptr) const {
    const bool has_nulls = column.array->null_count != 0 || std::ranges::any_of(parents, [](const arrow_part& part) {
                             return part.array->null_count != 0;
                           });
    if (!has_nulls && !arrow.is_dictionary && arrow.levels.size() == 1 && put_run(rows, from)) return;
    for (std::size_t row = 0; row < rows.count; ++row) {
      const std::int64_t at = from + static_cast<std::int64_t>(row);
      if (is_null(at))
        to.missing(rows, row);
      else
        put_one(rows, row, at, bytes);
    }
  }

 private:
  /// Puts consecutive numbers without nulls. Returns false for values of another kind.
  bool put_run(column_rows& rows, std::int64_t from) const {
    return to.column.kind == column_kind::number && to.column.number != dtype::boolean &&
           with_numbers([&](auto number) {
             using type = decltype(number);
             const type* const values = column.buffer<type>(1) + column.offset + from;
             to.column.place == label_place ? put_label_column<type>(to, rows, 0, values, rows.count)
                                            : put_feature_column<type>(to, rows, 0, values, rows.count);
           });
  }
  void put_one(column_rows& rows, std::size_t row, std::int64_t at, std::vector<std::byte>* bytes) const {
    if (arrow.levels.size() > 1) return put_list(rows, row, at);
    arrow_part part = column;
    if (arrow.is_dictionary) {
      std::uint64_t code = 0;
      muster::detail::with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                                  std::int64_t, std::uint64_t>(
          arrow_number(arrow.levels.back()->format),
          [&](auto number) { code = static_cast<std::uint64_t>(part.buffer<decltype(number)>(1)[part.offset + at]); });
      part = {part.array->dictionary, part.array->dictionary->offset};
      at = static_cast<std::int64_t>(code);
      if (code >= static_cast<std::uint64_t>(part.array->length))
        return rows.refuse(row, "a value in " + to.where + " is not in its dictionary; write it again");
      if (part.is_null(at)) return to.missing(rows, row);
    }
    switch (to.column.kind) {
      case column_kind::text:
        return to.put_class(rows, row, part.text(arrow.format, at));
      case column_kind::decimal:
        return to.put_text(rows, row, arrow_decimal(part.buffer<char>(1) + arrow.width * (part.offset + at), arrow));
      case column_kind::fixed_bytes:
        return static_cast<void>(
            std::memcpy(rows.record(row) + to.column.offset,
                        part.buffer<std::byte>(1) + static_cast<std::int64_t>(to.column.count) * (part.offset + at),
                        to.column.count));
      case column_kind::bytes: {
        const auto content = std::as_bytes(std::span(part.text(arrow.format, at)));
        if (bytes != nullptr) bytes->insert(bytes->end(), content.begin(), content.end());
        return;
      }
      default:
        break;
    }
    const auto put_value = [&](auto value) {
      using type = decltype(value);
      to.column.place == label_place ? put_label_column<type>(to, rows, row, &value, 1)
                                     : put_feature_column<type>(to, rows, row, &value, 1);
    };
    if (to.column.number == dtype::boolean)
      return put_value(arrow_part::bit(part.buffer<std::uint8_t>(1), part.offset + at));
    with_numbers([&](auto number) { put_value(part.buffer<decltype(number)>(1)[part.offset + at]); });
  }
  /// Puts a list whose lists have the column's shape.
  void put_list(column_rows& rows, std::size_t row, std::int64_t at) const {
    const auto range = elements(at, to.column.shape);
    if (!range)
      return rows.refuse(
          row, "a list in " + to.where +
                   " has another shape than the first list; correct it, or leave the record out as a bad record");
    const auto& [leaf, first] = *range;
    std::byte* output = rows.record(row) + to.column.offset;
    const std::size_t size = to.value_bytes();
    const bool is_boolean = to.column.number == dtype::boolean;
    const auto* const values = leaf.buffer<std::byte>(1);
    if (leaf.array->null_count == 0 && !is_boolean)
      return static_cast<void>(
          std::memcpy(output, values + static_cast<std::size_t>(leaf.offset + first) * size, size * to.column.count));
    for (std::int64_t k = first; k < first + static_cast<std::int64_t>(to.column.count); ++k, output += size) {
      if (leaf.is_null(k)) {
        if (to.options.missing == missing_values::fail) return to.missing(rows, row);
        to.put_missing(rows, row, output);
      } else if (is_boolean) {
        *output = std::byte{arrow_part::bit(leaf.buffer<std::uint8_t>(1), leaf.offset + k)};
      } else {
        std::memcpy(output, values + static_cast<std::size_t>(leaf.offset + k) * size, size);
      }
    }
  }

 public:
  /// Returns the array of the values of a list, and the first value's number. Returns nothing if the list does not have
  /// the shape. Extents of 0 in `shape` are set to those of the list.
  template <class Shape>
  [[nodiscard]] std::optional<std::pair<arrow_part, std::int64_t>> elements(std::int64_t at, Shape&& shape) const {
    arrow_part part = column;
    std::int64_t first = at, count = 1;
    for (std::size_t level = 0; level + 1 < arrow.levels.size(); ++level) {
      const std::string_view format = arrow.levels[level]->format;
      std::int64_t begin = 0;
      auto extent = static_cast<std::int64_t>(shape[level]);
      for (std::int64_t k = 0; k < count; ++k) {
        std::int64_t from = 0, to_end = 0;
        if (level != 0 && part.is_null(first + k)) return std::nullopt;
        if (format[1] == 'w') {
          const auto size = static_cast<std::int64_t>(parse_number<std::uint64_t>(format.substr(3)).value_or(0));
          from = (part.offset + first + k) * size;
          to_end = from + size;
        } else if (format == "+l") {
          from = part.buffer<std::int32_t>(1)[part.offset + first + k];
          to_end = part.buffer<std::int32_t>(1)[part.offset + first + k + 1];
        } else {
          from = part.buffer<std::int64_t>(1)[part.offset + first + k];
          to_end = part.buffer<std::int64_t>(1)[part.offset + first + k + 1];
        }
        if (k == 0) begin = from;
        if constexpr (!std::is_const_v<std::remove_reference_t<Shape>>) {
          if (extent == 0) extent = static_cast<std::int64_t>(shape[level] = static_cast<std::uint64_t>(to_end - from));
        }
        if (to_end - from != extent || extent == 0) return std::nullopt;
      }
      count *= extent;
      part = {part.array->children[0], part.array->children[0]->offset};
      first = begin;
    }
    return std::pair(part, first);
  }

 private:
  template <class F>
  bool with_numbers(const F& f) const {
    return muster::detail::with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t,
                                       std::uint32_t, std::int64_t, std::uint64_t, float16, float, double>(
        to.column.number, f);
  }
};

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>
