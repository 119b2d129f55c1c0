#include "parquet_columns.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include <arrow/util/decimal.h>
#include <parquet/exception.h>
#include <parquet/types.h>

namespace muster { inline namespace v0 { namespace data { namespace detail {
namespace {

constexpr std::size_t batch_rows = 1024;  // number of values that a reader requests at a time

// Sets the kind of a leaf from its types.
void set_kind(table_column& column, const parquet::ColumnDescriptor& leaf) {
  const auto& logical = leaf.logical_type();
  const auto physical = leaf.physical_type();
  column.type = logical && !logical->is_none() ? logical->ToString() : parquet::TypeToString(physical);
  const auto number = [&](dtype type) {
    column.kind = column_kind::number;
    column.number = type;
  };
  if (logical && logical->is_decimal()) {
    column.kind = column_kind::decimal;
  } else if (logical &&
             (logical->is_timestamp() || logical->is_date() || logical->is_time() || logical->is_interval())) {
    column.problem =
        "has times (" + column.type + ", and features are numbers); store them as numbers, such as seconds";
  } else if (logical && logical->is_int()) {
    const auto& integer = static_cast<const parquet::IntLogicalType&>(*logical);
    const int log2_size = integer.bit_width() == 8    ? 0
                          : integer.bit_width() == 16 ? 1
                          : integer.bit_width() == 32 ? 2
                                                      : 3;
    number(static_cast<dtype>(static_cast<int>(dtype::int8) + 2 * log2_size + (integer.is_signed() ? 0 : 1)));
  } else if (logical && logical->is_float16()) {
    number(dtype::float16);
  } else if (physical == parquet::Type::BYTE_ARRAY) {
    const bool is_text = logical && (logical->is_string() || logical->is_JSON() || logical->is_enum());
    column.kind = is_text ? column_kind::text : column_kind::bytes;
  } else if (physical == parquet::Type::FIXED_LEN_BYTE_ARRAY) {
    column.kind = column_kind::fixed_bytes;
    column.number = dtype::uint8;
    column.count = static_cast<std::uint64_t>(std::max(leaf.type_length(), 0));
    column.shape = {column.count};
  } else if (physical == parquet::Type::INT96) {
    column.problem = "has times (INT96, and features are numbers); store them as numbers, such as seconds";
  } else {
    number(physical == parquet::Type::BOOLEAN ? dtype::boolean
           : physical == parquet::Type::INT32 ? dtype::int32
           : physical == parquet::Type::INT64 ? dtype::int64
           : physical == parquet::Type::FLOAT ? dtype::float32
                                              : dtype::float64);
  }
  column.is_field = column.kind == column_kind::fixed_bytes;
  if (leaf.max_repetition_level() == 0 || column.kind == column_kind::refused) return;
  column.is_field = true;
  if (column.kind == column_kind::number) return;
  column.problem = "has lists of values that are not numbers (" + column.type + "); convert them to lists of numbers";
  column.kind = column_kind::refused;
}

void add_columns(const parquet::SchemaDescriptor& schema, const parquet::schema::Node& node, std::string name,
                 bool is_in_list, std::vector<table_column>& columns) {
  if (node.is_primitive()) {
    columns.push_back({.name = std::move(name), .type = {}});
    columns.back().index = schema.GetColumnIndex(static_cast<const parquet::schema::PrimitiveNode&>(node));
    set_kind(columns.back(), *schema.Column(columns.back().index));
    return;
  }
  const auto& group = static_cast<const parquet::schema::GroupNode&>(node);
  const auto refuse = [&](const std::string& kind) {
    columns.push_back({.name = std::move(name), .type = kind});
    columns.back().problem = "has " + kind +
                             " (columns are numbers, lists of numbers, or bytes); store its numbers in "
                             "columns of their own";
  };
  const bool is_list = node.logical_type() && node.logical_type()->is_list();
  if (is_list && group.field_count() == 1) {
    const auto& repeated = *group.field(0);
    const bool has_element =
        repeated.is_group() && static_cast<const parquet::schema::GroupNode&>(repeated).field_count() == 1;
    const auto& element = has_element ? *static_cast<const parquet::schema::GroupNode&>(repeated).field(0) : repeated;
    return add_columns(schema, element, std::move(name), true, columns);
  }
  if (node.logical_type() && node.logical_type()->is_map()) return refuse("maps");
  if (is_in_list || node.is_repeated() || is_list) return refuse("lists of structs");
  for (int field = 0; field < group.field_count(); ++field)
    add_columns(schema, *group.field(field), name + "." + group.field(field)->name(), false, columns);
}

// A column in a row group.
struct target : column_target {
  int scale = 0;       // of decimals
  int length = 0;      // of values of a fixed length
  int empty_list = 0;  // definition level of an empty list; that of a null is smaller
};

// Returns the definition level of an empty list: the number of nodes above the list's elements that may be null.
int empty_list_level(const parquet::ColumnDescriptor& leaf) {
  int level = 0;
  for (const parquet::schema::Node* node = leaf.schema_node().get(); node != nullptr; node = node->parent()) {
    if (node->is_repeated())
      level = 0;
    else if (node->is_optional())
      ++level;
  }
  return level;
}

// Calls f(Number{}) with the type of a column's numbers, among those that `Stored` may stand for.
template <class Stored, class F>
void with_number(dtype type, const F& f) {
  if constexpr (std::is_same_v<Stored, std::int32_t>) {
    muster::detail::with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t>(
        type, f);
  } else if constexpr (std::is_same_v<Stored, std::int64_t>) {
    muster::detail::with_one_of<std::int64_t, std::uint64_t>(type, f);
  } else if constexpr (std::is_same_v<Stored, parquet::FixedLenByteArray>) {
    muster::detail::with_one_of<float16>(type, f);
  } else if constexpr (std::is_arithmetic_v<Stored>) {
    f(Stored{});
  }
}

// Returns the text of a decimal, which is stored as a whole number.
template <class Stored>
std::string text_of(const Stored& stored, const target& to) {
  if constexpr (std::is_integral_v<Stored>) {
    return arrow::Decimal128(stored).ToString(to.scale);
  } else if constexpr (!std::is_arithmetic_v<Stored> && !std::is_same_v<Stored, parquet::Int96>) {
    int length = to.length;
    if constexpr (std::is_same_v<Stored, parquet::ByteArray>) length = static_cast<int>(stored.len);
    const auto number = arrow::Decimal256::FromBigEndian(stored.ptr, length);
    if (number.ok()) return number->ToString(to.scale);
  }
  return "with more than 32 bytes";
}

template <class Type>
class typed_reader : public parquet_column_reader {
 protected:
  using stored = typename Type::c_type;

  typed_reader(target to, std::shared_ptr<parquet::ColumnReader> reader, std::int16_t most_defined)
      : to_(std::move(to)), column_(std::move(reader)), most_defined_(most_defined) {}
  parquet::TypedColumnReader<Type>& reader() { return static_cast<parquet::TypedColumnReader<Type>&>(*column_); }
  [[noreturn]] void refuse_end() const { throw parquet::ParquetException(to_.where + " ends before its last row"); }

  target to_;
  std::shared_ptr<parquet::ColumnReader> column_;
  std::int16_t most_defined_;  // definition level of a value that is not null
};

// A reader of a column with one value in each row.
template <class Type>
class flat_reader final : public typed_reader<Type> {
  using stored = typename typed_reader<Type>::stored;

 public:
  flat_reader(target to, std::shared_ptr<parquet::ColumnReader> reader, std::int16_t most_defined)
      : typed_reader<Type>(std::move(to), std::move(reader), most_defined) {
    choose();
  }
  void read(parquet_rows& rows) override {
    for (std::size_t done = 0; done < rows.count;) {
      const std::size_t present = next(rows.count - done);
      if (values_read_ == present) {
        put_(this->to_, rows, done, values_.get(), present);
      } else {
        const stored* value = values_.get();
        for (std::size_t k = 0; k < present; ++k) {
          if (defined_[k] == this->most_defined_) {
            put_(this->to_, rows, done + k, value++, 1);
          } else {
            put_null(rows, done + k);
          }
        }
      }
      done += present;
    }
  }
  void skip(std::uint64_t rows) {
    while (rows > 0) rows -= next(rows);
  }

 private:
  std::size_t next(std::uint64_t most) {
    std::int64_t values = 0;
    const auto count = this->reader().ReadBatch(static_cast<std::int64_t>(std::min<std::uint64_t>(most, batch_rows)),
                                                defined_.data(), nullptr, values_.get(), &values);
    if (count <= 0) this->refuse_end();
    values_read_ = static_cast<std::size_t>(values);
    return static_cast<std::size_t>(count);
  }
  void put_null(parquet_rows& rows, std::size_t row) {
    this->to_.missing(rows, row);
    if (this->to_.column.kind == column_kind::bytes) rows.block.ends[rows.first + row] = rows.block.bytes.size();
  }
  void choose() {
    using place_of = const target&;
    const table_column& column = this->to_.column;
    if (column.kind == column_kind::decimal) {
      put_ = [](place_of to, parquet_rows& rows, std::size_t row, const stored* values, std::size_t count) {
        for (std::size_t k = 0; k < count; ++k) to.put_text(rows, row + k, text_of(values[k], to));
      };
    } else if (column.kind == column_kind::number) {
      with_number<stored>(column.number, [&](auto number) {
        using type = decltype(number);
        put_ = [](place_of to, parquet_rows& rows, std::size_t row, const stored* values, std::size_t count) {
          to.column.place == label_place ? put_label_column<type>(to, rows, row, values, count)
                                         : put_feature_column<type>(to, rows, row, values, count);
        };
      });
    }
    if constexpr (std::is_same_v<stored, parquet::FixedLenByteArray>) {
      if (column.kind != column_kind::fixed_bytes) return;
      put_ = [](place_of to, parquet_rows& rows, std::size_t row, const stored* values, std::size_t count) {
        for (std::size_t k = 0; k < count; ++k)
          std::memcpy(rows.record(row + k) + to.column.offset, values[k].ptr, to.column.count);
      };
    } else if constexpr (std::is_same_v<stored, parquet::ByteArray>) {
      if (column.kind != column_kind::text && column.kind != column_kind::bytes) return;
      put_ = [](place_of to, parquet_rows& rows, std::size_t row, const stored* values, std::size_t count) {
        for (std::size_t k = 0; k < count; ++k) {
          const auto* const text = reinterpret_cast<const char*>(values[k].ptr);
          if (to.column.kind == column_kind::text) {
            to.put_class(rows, row + k, {text, values[k].len});
            continue;
          }
          auto& bytes = rows.block.bytes;
          bytes.resize(bytes.size() + values[k].len);
          if (values[k].len != 0) std::memcpy(bytes.data() + bytes.size() - values[k].len, text, values[k].len);
          rows.block.ends[rows.first + row + k] = bytes.size();
        }
      };
    }
  }

  void (*put_)(const target&, parquet_rows&, std::size_t, const stored*, std::size_t) = nullptr;
  std::vector<std::int16_t> defined_ = std::vector<std::int16_t>(batch_rows);
  std::unique_ptr<stored[]> values_ = std::make_unique<stored[]>(batch_rows);
  std::size_t values_read_ = 0;
};

// A reader of a column with a list of numbers in each row, whose shape is the same in all rows. A list's values have
// repetition levels that depend on the shape alone.
template <class Type>
class list_reader final : public typed_reader<Type> {
  using stored = typename typed_reader<Type>::stored;

 public:
  list_reader(target to, std::shared_ptr<parquet::ColumnReader> reader, std::int16_t most_defined)
      : typed_reader<Type>(std::move(to), std::move(reader), most_defined),
        count_(this->to_.column.count),
        capacity_(std::max<std::size_t>(2 * (count_ + 1), 8192)) {
    const auto& shape = this->to_.column.shape;
    expected_.assign(count_, static_cast<std::int16_t>(shape.size()));
    for (std::size_t k = 0; k < count_; ++k) {
      std::uint64_t inner = 1;
      for (std::size_t level = shape.size(); level-- > 0 && k % (inner *= shape[level]) == 0;) --expected_[k];
    }
    if (count_ != 0) expected_[0] = 0;
    defined_.resize(capacity_);
    repeated_.resize(capacity_);
    values_ = std::make_unique<stored[]>(capacity_);
    with_number<stored>(this->to_.column.number, [&](auto number) { put_ = &put_elements<decltype(number), stored>; });
  }
  void read(parquet_rows& rows) override {
    for (std::size_t row = 0; row < rows.count; ++row) read_list(rows, row);
  }
  void skip(std::uint64_t rows) {
    for (; rows > 0; --rows) {
      require_levels(1);
      if (level_ == levels_) this->refuse_end();
      pass_list();
    }
  }

 private:
  void read_list(parquet_rows& rows, std::size_t row) {
    require_levels(count_ + 1);
    const std::size_t present = levels_ - level_;
    if (present == 0) this->refuse_end();
    const bool has_shape = present >= count_ &&
                           std::equal(expected_.begin(), expected_.end(), repeated_.begin() + at()) &&
                           (present == count_ || repeated_[level_ + count_] == 0);
    const auto first = defined_.begin() + at();
    const auto size = static_cast<std::ptrdiff_t>(count_);
    std::byte* const output = rows.record(row) + this->to_.column.offset;
    if (has_shape &&
        std::all_of(first, first + size, [&](std::int16_t level) { return level == this->most_defined_; })) {
      put_(this->to_, rows, row, output, values_.get() + value_, count_);
      level_ += count_;
      value_ += count_;
    } else if (has_shape &&
               std::any_of(first, first + size, [&](std::int16_t level) { return level == this->most_defined_; })) {
      read_with_nulls(rows, row, output);
    } else {
      refuse_list(rows, row, has_shape);
    }
  }
  void read_with_nulls(parquet_rows& rows, std::size_t row, std::byte* output) {
    const bool is_filled = this->to_.options.missing != missing_values::fail;
    if (!is_filled) this->to_.missing(rows, row);
    for (std::size_t k = 0; k < count_; ++k, ++level_, output += this->to_.value_bytes()) {
      if (defined_[level_] == this->most_defined_) {
        put_(this->to_, rows, row, output, values_.get() + value_++, 1);
      } else if (is_filled) {
        this->to_.put_missing(rows, row, output);
      }
    }
  }
  // Passes a list that is null, or has another shape.
  void refuse_list(parquet_rows& rows, std::size_t row, bool has_shape) {
    const bool is_null = has_shape || defined_[level_] < this->to_.empty_list;
    pass_list();
    if (is_null) return this->to_.missing(rows, row);
    rows.refuse(row, "a list in " + this->to_.where + " has another shape than the first list (" +
                         muster::detail::joined(this->to_.column.shape, "x",
                                                [](std::uint64_t extent) { return std::to_string(extent); }) +
                         "); correct it, or leave the record out as a bad record");
  }
  void pass_list() {
    do {
      value_ += defined_[level_] == this->most_defined_ ? 1 : 0;
      if (++level_ == levels_) require_levels(1);
    } while (level_ != levels_ && repeated_[level_] != 0);
  }
  // Reads on until there are `least` levels after `level_`, or the row group ends.
  void require_levels(std::size_t least) {
    while (!ended_ && levels_ - level_ < least) {
      std::copy(defined_.begin() + at(), defined_.begin() + static_cast<std::ptrdiff_t>(levels_), defined_.begin());
      std::copy(repeated_.begin() + at(), repeated_.begin() + static_cast<std::ptrdiff_t>(levels_), repeated_.begin());
      std::move(values_.get() + value_, values_.get() + values_end_, values_.get());
      levels_ -= std::exchange(level_, 0);
      values_end_ -= std::exchange(value_, 0);
      std::int64_t values = 0;
      const auto count =
          this->reader().ReadBatch(static_cast<std::int64_t>(capacity_ - levels_), defined_.data() + levels_,
                                   repeated_.data() + levels_, values_.get() + values_end_, &values);
      if constexpr (std::is_same_v<stored, parquet::FixedLenByteArray>) keep_bytes(static_cast<std::size_t>(values));
      ended_ = count <= 0;
      levels_ += static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
      values_end_ += static_cast<std::size_t>(values);
    }
  }
  // Copies the bytes of values before and after `values_end_`, because the reader's memory ends with its page.
  void keep_bytes(std::size_t added) {
    const auto width = static_cast<std::size_t>(this->reader().descr()->type_length());
    std::vector<std::uint8_t> kept((values_end_ + added) * width);
    for (std::size_t k = 0; k < values_end_ + added; ++k) {
      std::memcpy(kept.data() + k * width, values_[k].ptr, width);
      values_[k].ptr = kept.data() + k * width;
    }
    kept_ = std::move(kept);
  }
  [[nodiscard]] std::ptrdiff_t at() const { return static_cast<std::ptrdiff_t>(level_); }

  void (*put_)(const column_target&, column_rows&, std::size_t, std::byte*, const stored*, std::size_t) = nullptr;
  std::size_t count_, capacity_;
  std::vector<std::int16_t> expected_;  // repetition levels of a list with the shape
  std::vector<std::int16_t> defined_,
      repeated_;                      // levels that were read; those from `level_` to `levels_` are not used
  std::unique_ptr<stored[]> values_;  // values that were read; those from `value_` to `values_end_` are not used
  std::vector<std::uint8_t> kept_;    // bytes of values that are pointers
  std::size_t level_ = 0, levels_ = 0, value_ = 0, values_end_ = 0;
  bool ended_ = false;
};

// Leaves out the pages of a column with one value in each row before row `start`. Returns the first row of the first
// page that is read.
std::shared_ptr<std::uint64_t> skip_pages(parquet::PageReader& pages, std::uint64_t start) {
  auto skipped = std::make_shared<std::uint64_t>(0);
  pages.set_data_page_filter([skipped, start, reading = false](const parquet::DataPageStats& page) mutable {
    const auto rows = static_cast<std::uint64_t>(std::max(page.num_values, 0));
    reading = reading || *skipped + rows > start;
    if (!reading) *skipped += rows;
    return !reading;
  });
  return skipped;
}

template <template <class> class Reader, class F>
void with_reader(parquet::Type::type type, const F& f) {
  switch (type) {
    case parquet::Type::BOOLEAN:
      return f(std::type_identity<Reader<parquet::BooleanType>>());
    case parquet::Type::INT32:
      return f(std::type_identity<Reader<parquet::Int32Type>>());
    case parquet::Type::INT64:
      return f(std::type_identity<Reader<parquet::Int64Type>>());
    case parquet::Type::FLOAT:
      return f(std::type_identity<Reader<parquet::FloatType>>());
    case parquet::Type::DOUBLE:
      return f(std::type_identity<Reader<parquet::DoubleType>>());
    case parquet::Type::BYTE_ARRAY:
      return f(std::type_identity<Reader<parquet::ByteArrayType>>());
    case parquet::Type::FIXED_LEN_BYTE_ARRAY:
      return f(std::type_identity<Reader<parquet::FLBAType>>());
    default:
      throw parquet::ParquetException("unknown type");
  }
}

}  // namespace

std::vector<table_column> columns_of(const parquet::SchemaDescriptor& schema) {
  std::vector<table_column> columns;
  const auto& root = *schema.group_node();
  for (int field = 0; field < root.field_count(); ++field)
    add_columns(schema, *root.field(field), root.field(field)->name(), false, columns);
  return columns;
}

std::unique_ptr<parquet_column_reader> read_column(const table_column& column, const parquet::ColumnDescriptor& leaf,
                                                   int group, std::unique_ptr<parquet::PageReader> pages,
                                                   std::uint64_t start, const column_options& options) {
  target to{{column, options, column.quoted() + " of row group " + std::to_string(group)},
            leaf.type_scale(),
            leaf.type_length(),
            empty_list_level(leaf)};
  const bool is_list = leaf.max_repetition_level() != 0;
  const auto skipped = start != 0 && !is_list ? skip_pages(*pages, start) : nullptr;
  auto reader = parquet::ColumnReader::Make(&leaf, std::move(pages));
  std::unique_ptr<parquet_column_reader> made;
  const auto make = [&](auto type) {
    auto typed = std::make_unique<typename decltype(type)::type>(std::move(to), reader, leaf.max_definition_level());
    if (skipped) (void)reader->HasNext();  // passes the pages before the row
    typed->skip(start - (skipped ? *skipped : 0));
    made = std::move(typed);
  };
  is_list ? with_reader<list_reader>(leaf.physical_type(), make) : with_reader<flat_reader>(leaf.physical_type(), make);
  return made;
}

std::vector<std::uint64_t> shape_of_lists(const parquet::ColumnDescriptor& leaf,
                                          std::unique_ptr<parquet::PageReader> pages) {
  const auto depth = static_cast<std::size_t>(leaf.max_repetition_level());
  auto reader = parquet::ColumnReader::Make(&leaf, std::move(pages));
  std::vector<std::uint64_t> shape(depth), starts(depth + 1);
  bool is_whole = false;
  // Returns the shape of the list that ends, unless it has missing values or its parts have different lengths.
  const auto found = [&] {
    for (std::size_t level = 0; level < depth; ++level) {
      if (!is_whole || starts[level + 1] % starts[level] != 0) return false;
      shape[level] = starts[level + 1] / starts[level];
    }
    return is_whole;
  };
  bool is_found = false;
  with_reader<list_reader>(leaf.physical_type(), [&]<class Type>(std::type_identity<list_reader<Type>>) {
    auto& typed = static_cast<parquet::TypedColumnReader<Type>&>(*reader);
    std::vector<std::int16_t> defined(batch_rows), repeated(batch_rows);
    const auto values = std::make_unique<typename Type::c_type[]>(batch_rows);
    for (std::int64_t count = 1; count > 0 && !is_found;) {
      std::int64_t ignored = 0;
      count = typed.ReadBatch(batch_rows, defined.data(), repeated.data(), values.get(), &ignored);
      for (std::size_t k = 0; k < static_cast<std::size_t>(count) && !is_found; ++k) {
        if (repeated[k] == 0) {
          is_found = found();
          std::ranges::fill(starts, 0);
          is_whole = true;
        }
        if (is_found) break;
        is_whole = is_whole && defined[k] == leaf.max_definition_level();
        for (auto level = static_cast<std::size_t>(repeated[k]); level <= depth; ++level) ++starts[level];
      }
    }
  });
  if (!is_found && !found()) shape.clear();
  return shape;
}

}}}}  // namespace muster::v0::data::detail
