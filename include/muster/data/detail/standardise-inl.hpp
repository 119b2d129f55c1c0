#pragma once

#include <muster/data/standardise.hpp>

#include <string>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/pipeline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {

MUSTER_INLINE record_schema standardise::output(const record_schema& input_schema) {
  const auto& columns = statistics_.columns;
  const auto refuse = [&](const std::string& reason) {
    throw configuration_error("cannot standardise records of " + to_string(input_schema) + " (" + reason +
                              "); use the statistics of the source");
  };
  const auto deviation_of = [](const column_statistics& column) {
    return column.deviation() > 0 ? column.deviation() : 1.0;
  };
  if (const auto shape = detail::shape_of_image(input_schema)) {
    if (columns.size() != shape->channels) refuse("the statistics have " + std::to_string(columns.size()) + " columns");
    image_options options{.output = layout_};
    for (std::size_t channel = 0; channel < columns.size(); ++channel) {
      options.mean[channel] = static_cast<float>(columns[channel].mean / 255);
      options.deviation[channel] = static_cast<float>(deviation_of(columns[channel]) / 255);
    }
    image_.emplace(options);
    return image_->output(input_schema);
  }
  if (input_schema.form != record_form::fixed || input_schema.fields.size() != 1 ||
      input_schema.fields[0].type != dtype::float32 || input_schema.fields[0].shape.size() != 1 ||
      input_schema.fields[0].elements() != columns.size()) {
    refuse("supported are images of bytes, and a row of float32 with a column of statistics for each element");
  }
  mean_.clear();  // output() is called again when the source is replaced
  scale_.clear();
  for (const column_statistics& column : columns) {
    mean_.push_back(static_cast<float>(column.mean));
    scale_.push_back(static_cast<float>(1 / deviation_of(column)));
  }
  return input_schema;
}

MUSTER_INLINE std::uint64_t standardise::version() const noexcept {
  if (image_) return image_->version();
  constexpr std::uint64_t current = 1;
  return digest().add(current).add(std::as_bytes(std::span(mean_))).add(std::as_bytes(std::span(scale_))).value();
}

MUSTER_INLINE void standardise::operator()(std::span<const std::byte> input,
                                           std::span<std::byte> result) const noexcept {
  if (image_) return (*image_)(input, result);
  const auto* const in = reinterpret_cast<const float*>(input.data());
  auto* const out = reinterpret_cast<float*>(result.data());
  for (std::size_t k = 0; k < mean_.size(); ++k) out[k] = (in[k] - mean_[k]) * scale_[k];
}

MUSTER_INLINE loader operator|(loader pipeline, standardise_by_source pipeline_step) {
  source_statistics found = statistics(pipeline, pipeline_step.threads);
  return std::move(pipeline) | map(standardise(std::move(found), pipeline_step.output));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
