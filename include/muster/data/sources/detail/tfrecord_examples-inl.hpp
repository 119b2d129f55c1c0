#pragma once

#include <muster/data/sources/tfrecord_examples.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;  // largest size of a record

[[noreturn]] inline void refuse_features(const std::string& text, const std::string& reason) {
  throw configuration_error("features '" + text + "' cannot be used (" + reason +
                            "); write for example features=image:uint8[3x32x32],name:float32,tags:int64[..20]");
}

// Reads the text within the brackets of a feature, such as "3x32x32" or "..20".
inline void read_shape(std::string_view written, example_feature& feature, const std::string& text) {
  feature.up_to = written.starts_with("..");
  if (feature.up_to) written.remove_prefix(2);
  for (const auto word : muster::detail::split(written, 'x')) {
    const auto extent = parse_number<std::uint64_t>(word);
    if (!extent || *extent == 0)
      refuse_features(text, "the shape of '" + feature.name + "' is not numbers with x between them");
    feature.shape.push_back(*extent);
  }
}

// Returns the schema of the records. Throws if the columns have an error.
inline record_schema schema_of(const example_columns& columns) {
  record_schema schema{record_form::fixed, {}, 0, columns.labels};
  std::uint64_t bytes = 0;
  std::vector<std::string_view> names(columns.labels.begin(), columns.labels.end());
  for (const example_feature& feature : columns.features) {
    if (std::ranges::find(names, feature.name) != names.end()) refuse_features(feature.name, "the name occurs twice");
    names.emplace_back(feature.name);
    if (feature.type == dtype::none) {
      if (columns.features.size() != 1)
        refuse_features(feature.name, "a feature of bytes of any length must be the only feature");
      schema.form = record_form::bytes;
      return schema;
    }
    const auto size = detail::checked_product(size_of(feature.type), feature.shape);
    if (!size || *size == 0 || *size > most_bytes - bytes) refuse_features(feature.name, "it is empty or too large");
    bytes += *size;
    schema.fields.push_back({feature.name, feature.type, feature.shape});
  }
  if (columns.features.empty()) refuse_features("", "there are no features");
  return schema;
}

}  // namespace detail

MUSTER_INLINE std::vector<example_feature> parse_example_features(const std::string& text) {
  std::vector<example_feature> features;
  for (const auto word : muster::detail::listed(text)) {
    const auto colon = word.rfind(':');
    if (colon == std::string_view::npos || colon == 0)
      detail::refuse_features(text, "'" + std::string(word) + "' has no type");
    example_feature feature{.name = std::string(word.substr(0, colon))};
    std::string_view type = word.substr(colon + 1);
    if (const auto bracket = type.find('['); bracket != std::string_view::npos && type.ends_with(']')) {
      detail::read_shape(type.substr(bracket + 1, type.size() - bracket - 2), feature, text);
      type = type.substr(0, bracket);
    }
    feature.type = detail::dtype_named(type);
    const bool is_bytes = type == "bytes" && feature.shape.empty();
    if (feature.type == dtype::none && !is_bytes)
      detail::refuse_features(text, "'" + std::string(type) + "' is not a type");
    features.push_back(std::move(feature));
  }
  return features;
}

struct tfrecord_examples::state : detail::source_facts {
  state(tfrecord_files opened, example_columns requested)
      : files(std::move(opened)), columns(std::move(requested)), record_bytes(0) {
    schema = detail::schema_of(columns);
    name = files.name();
    size = files.size();
    record_bytes = schema.record_bytes();
    muster::digest all;
    all.add(files.digest()).add(to_string(schema));
    for (const example_feature& feature : columns.features) all.add(feature.name).add(std::uint64_t{feature.up_to});
    digest = all.value();
  }

  // Reads record `id`. Appends the error of a bad record to `bad`, or throws the error if `bad` is null. Returns true
  // if the record is good.
  bool read(sample_id id, detail::example_row& row, std::vector<bad_record>* bad) const {
    try {
      const std::string problem = detail::read_example(files.view(id), columns, row);
      if (problem.empty()) return true;
      throw data_error(files.location_of(id), problem);
    } catch (const data_error& error) {
      if (bad == nullptr) throw;
      bad->push_back({id, error.where(), error.problem()});
    }
    return false;
  }

  tfrecord_files files;
  example_columns columns;
  std::size_t record_bytes;  // record size; 0: sizes differ
};

MUSTER_INLINE tfrecord_examples::tfrecord_examples(tfrecord_files files, example_columns columns)
    : state_(std::make_shared<state>(std::move(files), std::move(columns))) {
  facts_ = state_.get();
}

MUSTER_INLINE std::optional<std::uint64_t> tfrecord_examples::host_state() const { return state_->files.host_state(); }
MUSTER_INLINE std::optional<std::uint64_t> tfrecord_examples::host_state_now() const {
  return state_->files.host_state_now();
}

MUSTER_INLINE void tfrecord_examples::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  std::vector<bad_record> bad;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    detail::example_row row;
    if (state_->record_bytes == 0) (void)state_->read(ids[k], row, &bad);
    out[k] = state_->record_bytes != 0 ? state_->record_bytes : row.bytes_value.size();
  }
}

MUSTER_INLINE void tfrecord_examples::read(std::span<const sample_id> ids, const record_rows& rows,
                                           std::vector<bad_record>* bad) const {
  const std::size_t width = schema().labels.size();
  std::byte* output = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    detail::example_row row;
    if (!rows.bytes.empty()) row.bytes = {output, state_->record_bytes};
    if (!rows.labels.empty()) row.labels = rows.labels.subspan(k * width, width);
    const bool good = state_->read(ids[k], row, bad);
    if (!good) std::ranges::fill(row.labels, 0.0f);
    if (!good) std::ranges::fill(row.bytes, std::byte{0});
    if (rows.bytes.empty()) continue;
    if (state_->record_bytes == 0 && good) output = std::ranges::copy(row.bytes_value, output).out;
    output += state_->record_bytes;
  }
}

}}}  // namespace muster::v0::data
