// Conversion of numbers to mean 0 and deviation 1, with the statistics of their source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <muster/data/image.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_transform.hpp>
#include <muster/data/source_statistics.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A function for map(): subtracts from every number the mean of its column and divides by the column's deviation (or
/// by 1 if the deviation is 0), as computed by statistics(). For images the columns are the channels, as in normalise.
/// For tables (records with a single float32 field with one extent) the columns are the features.
class standardise {
 public:
  /// Takes the statistics of the same columns. For images, `output` is the layout of the result.
  explicit standardise(source_statistics statistics, image_layout output = image_layout::hwc)
      : statistics_(std::move(statistics)), layout_(output) {}
  /// The functions of record_transform. `output` throws configuration_error if the records are neither images nor rows
  /// of float32, or if their number of columns differs from the statistics.
  [[nodiscard]] record_schema output(const record_schema& input_schema);
  /// Returns a digest of the statistics, so that a cache distinguishes different statistics.
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> input, std::span<std::byte> result) const noexcept;  ///< thread safe

 private:
  source_statistics statistics_;
  image_layout layout_;
  std::optional<normalise> image_;
  std::vector<float> mean_, scale_;
};
static_assert(record_transform<standardise>);

/// A step of a pipeline: map(standardise(...)) with the statistics of the loader's source. They are looked up or
/// computed when the step is added: each rank reads the whole source if its manifest has no statistics. They use the
/// source's order of columns and its current records. When data grow, or a training is resumed, pass the statistics
/// explicitly instead.
struct standardise_by_source {
  image_layout output = image_layout::hwc;
  int threads = 0;  ///< number of threads for computing the statistics
};
[[nodiscard]] loader operator|(loader pipeline, standardise_by_source pipeline_step);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::standardise;
using data::standardise_by_source;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
