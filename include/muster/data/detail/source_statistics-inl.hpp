#pragma once

#include <muster/data/source_statistics.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/image.hpp>
#include <muster/data/parallel.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/records/manifest_file.hpp>
#include <muster/data/sources/fixed_records.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::uint64_t most_columns = 1 << 16;
inline constexpr std::size_t most_labels = 4096;

// The assignment of the elements of a record with fields to columns. `columns_of_elements` is empty for sparse records,
// which have a column for each feature, or one column.
struct column_plan {
  std::vector<std::uint32_t> columns_of_elements;
  std::size_t columns = 0;
};

// Assigns each element of the records of a source to a column of the statistics. Throws configuration_error for records
// of bytes.
inline column_plan assign_columns(const any_record_source& source) {
  const record_schema& schema = source.schema();
  if (schema.form == record_form::bytes) {
    throw configuration_error(
        "the records of " + std::string(source.name()) +
        " have no statistics (they are bytes in a user-defined format); convert them into records with fields");
  }
  if (schema.form == record_form::sparse) return {{}, schema.features <= most_columns ? schema.features : 1};
  column_plan plan;
  const auto image = detail::shape_of_image(schema);
  for (const record_field& field : schema.fields) {
    std::uint64_t alternate = 1;  // number of columns that alternate, each for `repeat` elements
    std::uint64_t repeat = field.elements();
    if (image) {
      alternate = image->channels;
      repeat = image->layout == image_layout::chw ? image->height * image->width : 1;
    } else if (field.shape.size() == 1 && field.elements() <= most_columns) {
      std::swap(alternate, repeat);
    }
    for (std::uint64_t k = 0; k < field.elements(); ++k)
      plan.columns_of_elements.push_back(static_cast<std::uint32_t>(plan.columns + k / repeat % alternate));
    plan.columns += alternate;
  }
  return plan;
}

inline void note_label(source_statistics& statistics, float label, std::uint64_t count, bool& too_many_labels) {
  if (!too_many_labels) statistics.histogram[label] += count;
  too_many_labels = too_many_labels || statistics.histogram.size() > most_labels;
}

}  // namespace detail

MUSTER_INLINE double column_statistics::deviation() const noexcept {
  return count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
}

MUSTER_INLINE void column_statistics::add(double value) noexcept {
  if (!std::isfinite(value)) return;
  least = count == 0 ? value : std::min(least, value);
  greatest = count == 0 ? value : std::max(greatest, value);
  const double difference = value - mean;
  mean += difference / static_cast<double>(++count);
  squares += difference * (value - mean);
}

MUSTER_INLINE void column_statistics::merge(const column_statistics& other) noexcept {
  if (other.count == 0) return;
  if (count == 0) return static_cast<void>(*this = other);
  least = std::min(least, other.least);
  greatest = std::max(greatest, other.greatest);
  const double difference = other.mean - mean;
  const auto own_count = static_cast<double>(count);
  const auto other_count = static_cast<double>(other.count);
  mean += difference * (other_count / (own_count + other_count));
  squares += other.squares + difference * difference * (own_count * other_count / (own_count + other_count));
  count += other.count;
}

MUSTER_INLINE void source_statistics::merge(const source_statistics& other) {
  bool too_many_labels = (label.count != 0 && histogram.empty()) || (other.label.count != 0 && other.histogram.empty());
  records += other.records;
  left_out += other.left_out;
  if (columns.empty()) columns.resize(other.columns.size());
  for (std::size_t k = 0; k < other.columns.size(); ++k) columns[k].merge(other.columns[k]);
  label.merge(other.label);
  for (const auto& [value, count] : other.histogram) detail::note_label(*this, value, count, too_many_labels);
  if (too_many_labels) histogram.clear();
}

MUSTER_INLINE source_statistics detail::statistics_of_part(const any_record_source& source, std::uint64_t first,
                                                           int index) {
  constexpr std::uint64_t run_bytes = std::uint64_t{1} << 20;
  constexpr std::uint64_t most_records = 1024;
  const record_schema& schema = source.schema();
  const detail::column_plan plan = detail::assign_columns(source);
  const index_range range = part_of(source.size() - first, {index, statistics_parts});
  const std::size_t width = schema.labels.size();
  const std::uint64_t record = schema.record_bytes();
  const std::uint64_t records_per_run =
      std::clamp<std::uint64_t>(run_bytes / std::max<std::uint64_t>(record, 1), 1, most_records);
  source_statistics found;
  found.columns.resize(plan.columns);
  bool too_many_labels = false;
  record_run run;
  for (std::uint64_t at = first + range.first; at < first + range.last; at += run.sizes.size()) {
    run.read(source, at, std::min(records_per_run, first + range.last - at));
    const std::byte* record_begin = run.bytes.data();
    for (std::size_t k = 0; k < run.sizes.size(); record_begin += run.sizes[k++]) {
      if (std::ranges::find(run.bad, at + k, &bad_record::id) != run.bad.end()) {
        ++found.left_out;
        continue;
      }
      ++found.records;
      if (width != 0) {
        const float label = run.labels[k * width];
        found.label.add(double{label});
        if (std::isfinite(label)) detail::note_label(found, label, 1, too_many_labels);
      }
      if (schema.form == record_form::fixed) {
        const std::byte* element = record_begin;
        auto column = plan.columns_of_elements.begin();
        for (const record_field& field : schema.fields) {
          const auto convert = float_reader(field.type);
          for (std::uint64_t n = field.elements(); n > 0; --n, element += size_of(field.type))
            found.columns[*column++].add(double{convert(element)});
        }
        continue;
      }
      for (std::size_t n = 0; n < run.sizes[k] / sizeof(sparse_entry); ++n) {
        sparse_entry entry;
        std::memcpy(&entry, record_begin + n * sizeof entry, sizeof entry);
        found.columns[plan.columns == 1 ? 0 : entry.index].add(double{entry.value});
      }
    }
  }
  if (schema.form == record_form::sparse) {  // absent values are zero
    const std::uint64_t values = found.records * (plan.columns == 1 ? schema.features : 1);
    for (column_statistics& column : found.columns) column.merge({.count = values - std::min(values, column.count)});
  }
  if (too_many_labels) found.histogram.clear();
  return found;
}

MUSTER_INLINE source_statistics detail::kept_statistics(const any_record_source& source) {
  const auto stored = source.known_statistics();
  if (!stored) return {};
  const auto columns = detail::assign_columns(source).columns;
  if (stored->columns.size() == columns || (stored->columns.empty() && stored->records == 0)) return *stored;
  throw data_error({std::string(source.name())}, "has statistics that do not match its records (they have " +
                                                     std::to_string(stored->columns.size()) +
                                                     " columns, and the records have " + std::to_string(columns) +
                                                     "); remove the note from its manifest");
}

MUSTER_INLINE source_statistics statistics(const any_record_source& source, int threads,
                                           const std::function<void()>& on_part) {
  source_statistics all = detail::kept_statistics(source);
  const std::uint64_t first = all.records + all.left_out;
  if (first == source.size()) return all;
  std::vector<source_statistics> parts(detail::statistics_parts);
  detail::parallel_for(parts.size(), threads, [&](std::size_t index) {
    parts[index] = detail::statistics_of_part(source, first, static_cast<int>(index));
    if (on_part) on_part();
  });
  for (const source_statistics& part : parts) all.merge(part);
  return all;
}

MUSTER_INLINE void keep_statistics(const std::string& folder, const source_statistics& statistics) {
  detail::manifest_file(detail::path_of_manifest(folder), true)
      .note(detail::statistics_note + detail::to_text(statistics));
}

MUSTER_INLINE std::string detail::to_text(const source_statistics& statistics) {
  const auto json_of = [](const column_statistics& column) {
    return nlohmann::ordered_json::array({column.count, column.mean, column.squares, column.least, column.greatest});
  };
  nlohmann::ordered_json text = {
      {"records", statistics.records}, {"left_out", statistics.left_out}, {"label", json_of(statistics.label)}};
  text["columns"] = nlohmann::ordered_json::array();
  for (const column_statistics& column : statistics.columns) text["columns"].push_back(json_of(column));
  text["histogram"] = nlohmann::ordered_json::array();
  for (const auto& [value, count] : statistics.histogram)
    text["histogram"].push_back(nlohmann::ordered_json::array({value, count}));
  return text.dump();
}

MUSTER_INLINE source_statistics detail::statistics_from_text(std::string_view text, const std::string& path) {
  try {
    const auto read = nlohmann::json::parse(text);
    const auto column_of = [](const nlohmann::json& json) {
      return column_statistics{json.at(0), json.at(1), json.at(2), json.at(3), json.at(4)};
    };
    source_statistics found{.records = read.at("records"), .left_out = read.at("left_out")};
    found.label = column_of(read.at("label"));
    for (const auto& column : read.at("columns")) found.columns.push_back(column_of(column));
    for (const auto& bin : read.at("histogram")) found.histogram[bin.at(0)] = bin.at(1);
    return found;
  } catch (const nlohmann::json::exception&) {
    throw data_error({path}, "has statistics that cannot be read (another version wrote them); run muster-data stats");
  }
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
