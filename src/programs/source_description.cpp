#include "source_description.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/text.hpp>
#include <muster/data/open.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/shards.hpp>

#include "visible.hpp"

namespace {

using muster::data::record_form;
using muster::data::detail::record_run;

constexpr std::uint64_t most_read = 256;                            // Records that are read.
constexpr std::uint64_t most_read_bytes = std::uint64_t{64} << 20;  // After the first two records.
constexpr std::size_t most_samples = 2;                             // Samples that are shown.
constexpr std::size_t most_values = 8;                              // Values of each field that are shown.

// Returns the compression of a local file by its first bytes, or an empty text.
std::string_view compression_of(const std::string& specification) {
  if (specification.find(':') == std::string::npos) return {};
  const std::string path = muster::spec_reader::of_source(specification).path();
  std::array<char, 4> first{};
  if (muster::detail::is_remote(path) || !std::ifstream(path, std::ios::binary).read(first.data(), first.size()))
    return {};
  const std::string_view bytes(first.data(), first.size());
  return bytes.starts_with("\x1f\x8b") ? "gzip" : bytes == "\x28\xb5\x2f\xfd" ? "zstd" : "";
}

// Returns an element of a field as a number. JSON has no NaN and no infinity, so these become texts.
json number_of(muster::dtype type, const std::byte* element) {
  json number;
  muster::detail::with_one_of<bool, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                              std::int64_t, std::uint64_t, muster::float16, muster::bfloat16, float, double>(
      type, [&]<class T>(T value) {
        std::memcpy(&value, element, sizeof value);
        if constexpr (std::is_integral_v<T>) {
          number = value;
        } else {
          const auto real = static_cast<double>(value);
          if (std::isfinite(real))
            number = real;
          else
            number = std::isnan(real) ? "nan" : real > 0 ? "inf" : "-inf";
        }
      });
  return number;
}

std::string name_of_column(const std::vector<std::string>& names, std::size_t column) {
  return column < names.size() && !names[column].empty() ? names[column] : std::to_string(column);
}

// Returns the first values of a record by column, by field, or by index.
json values_of(const muster::any_record_source& source, std::span<const std::byte> record) {
  const auto& schema = source.schema();
  const auto& names = source.columns().features;
  json values = json::object();
  if (schema.form == record_form::bytes) {
    std::string text(reinterpret_cast<const char*>(record.data()), std::min(record.size(), 2 * most_values));
    const bool is_text = std::ranges::all_of(text, [](unsigned char c) { return std::isprint(c) != 0; });
    if (!is_text) {
      text.clear();
      for (const std::byte each : record.first(std::min(record.size(), most_values)))
        text += muster::detail::printed("%02x", static_cast<unsigned>(each));
    }
    return {{"bytes", record.size()}, {"first", text}};
  }
  if (schema.form == record_form::sparse) {
    for (std::size_t at = 0; at < record.size() && values.size() < most_values;
         at += sizeof(muster::data::sparse_entry)) {
      muster::data::sparse_entry entry{};
      std::memcpy(&entry, record.data() + at, sizeof entry);
      values[std::to_string(entry.index)] =
          number_of(muster::dtype::float32, reinterpret_cast<const std::byte*>(&entry.value));
    }
    return values;
  }
  const bool is_table = schema.fields.size() == 1 && !names.empty() && names.size() == schema.fields[0].elements();
  for (const auto& field : schema.fields) {
    const std::size_t size = muster::size_of(field.type), shown = std::min<std::size_t>(field.elements(), most_values);
    json list = json::array();
    for (std::size_t k = 0; k < shown; ++k) {
      const json number = number_of(field.type, record.data() + k * size);
      if (is_table)
        values[name_of_column(names, k)] = number;
      else
        list.push_back(number);
    }
    if (!is_table) values[field.name] = field.shape.empty() ? list.at(0) : list;
    record = record.subspan(field.bytes());
  }
  return values;
}

json labels_of(const muster::any_record_source& source, std::span<const float> labels) {
  const auto& schema = source.schema();
  json found = json::object();
  for (std::size_t k = 0; k < labels.size(); ++k) {
    found[schema.labels[k]] = labels[k];
    if (k == 0 && labels[k] >= 0 && labels[k] < static_cast<float>(schema.classes.size()))
      found["class"] = schema.classes[static_cast<std::size_t>(labels[k])];
  }
  return found;
}

// Counts NaN in the float32 fields of a record by column.
void count_missing(const muster::any_record_source& source, std::span<const std::byte> record, json& counts) {
  const auto& schema = source.schema();
  if (schema.form != record_form::fixed) return;
  const auto& names = source.columns().features;
  std::size_t column = 0;
  for (const auto& field : schema.fields) {
    for (std::size_t k = 0; k < field.elements(); ++k, ++column) {
      if (field.type != muster::dtype::float32) continue;
      float value = 0;
      std::memcpy(&value, record.data() + k * sizeof value, sizeof value);
      if (!std::isnan(value)) continue;
      json& count = counts[name_of_column(names, column)];
      count = count.is_null() ? 1 : count.get<int>() + 1;
    }
    record = record.subspan(field.bytes());
  }
}

// Adds what the first records show: missing values, samples, and the first bad record.
void describe_first_records(const muster::any_record_source& source, json& report) {
  std::vector<muster::sample_id> ids(std::min(source.size(), most_read));
  std::iota(ids.begin(), ids.end(), muster::sample_id{0});
  std::vector<std::uint64_t> sizes(ids.size());
  source.sizes(ids, sizes);
  std::size_t count = 0;
  for (std::uint64_t bytes = 0;
       count < ids.size() && (count < most_samples || bytes + sizes[count] <= most_read_bytes);)
    bytes += sizes[count++];
  record_run run;
  run.read(source, 0, count, true, false);
  const std::size_t labels_each = source.schema().labels.size();
  json missing = json::object(), samples = json::array();
  auto bad = run.bad.begin();
  std::size_t at = 0;
  for (std::size_t k = 0; k < run.sizes.size(); at += run.sizes[k++]) {
    if (bad != run.bad.end() && bad->id == k) {
      ++bad;
      continue;
    }
    const auto record = std::span(run.bytes).subspan(at, run.sizes[k]);
    count_missing(source, record, missing);
    if (samples.size() == most_samples) continue;
    samples.push_back({{"from", source.location_of(k).to_string()}});
    const json labels = labels_of(source, std::span(run.labels).subspan(k * labels_each, labels_each));
    if (!labels.empty()) samples.back()["labels"] = labels;
    samples.back()["values"] = values_of(source, record);
  }
  if (!missing.empty()) report["missing_in_first"] = {{"records", run.sizes.size()}, {"by_column", missing}};
  if (!run.bad.empty()) report["first_bad"] = describe_bad(run.bad.front());
  report["samples"] = samples;
}

}  // namespace

muster::read_options options_for(bool keep_bad_records, int threads) {
  return {.threads = threads, .keep_bad_records = keep_bad_records};
}

muster::any_record_source open_visibly(const std::string& specification, const muster::read_options& options) {
  return done_visibly("opens " + muster::detail::without_secrets(specification),
                      [&] { return muster::open_source(specification, options); });
}

std::string path_of_records(const std::string& specification) {
  if (!specification.starts_with("records:")) return {};
  const std::string path = muster::spec_reader::of_source(specification).path();
  return path.substr(0, path.ends_with("?follow") ? path.size() - std::string_view("?follow").size() : path.size());
}

json describe_bad(const muster::bad_record& bad) {
  json entry = {{"id", bad.id}, {"file", bad.location.file}};
  if (bad.location.line != 0) entry["line"] = bad.location.line;
  if (bad.location.offset) entry["offset"] = *bad.location.offset;
  entry["problem"] = bad.problem;
  return entry;
}

json describe_source(const std::string& specification, int threads) {
  const auto source = open_visibly(specification, options_for(true, threads));
  const auto& schema = source.schema();
  json report = {{"source", muster::detail::without_secrets(specification)},
                 {"schema", to_string(schema)},
                 {"records", source.size()},
                 {"record_bytes", schema.record_bytes()},
                 {"labels", schema.labels},
                 {"mapped", source.mapped()},
                 {"digest", muster::detail::hex(source.digest())}};
  const auto& columns = source.columns();
  if (specification.starts_with("csv:")) report["header"] = columns.has_header ? "first row" : "none";
  if (const auto compression = compression_of(specification); !compression.empty()) report["compression"] = compression;
  if (!columns.features.empty()) {
    report["columns"] = json::array();
    for (std::size_t k = 0; k < columns.features.size(); ++k)
      report["columns"].push_back(name_of_column(columns.features, k));
  }
  if (!schema.classes.empty()) report["classes"] = schema.classes;
  if (const auto bad = source.known_bad()) report["bad"] = *bad;
  if (!source.notes().empty()) report["notes"] = source.notes();
  const std::string path = path_of_records(specification);
  if (!path.empty()) {
    report["files"] = json::array();
    for (const auto& file : muster::data::record_files(path).files()) {
      report["files"].push_back({{"path", file.path},
                                 {"first", file.first},
                                 {"records", file.records},
                                 {"bytes", file.file_bytes},
                                 {"payload_bytes", file.payload_bytes},
                                 {"blocks", file.blocks},
                                 {"alignment", file.alignment}});
    }
  }
  try {
    describe_first_records(source, report);
  } catch (const muster::data_error& failed) {
    report["first_bad"] = failed.what();
  }
  return report;
}
