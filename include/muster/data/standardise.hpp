// Numbers of mean 0 and deviation 1, by the statistics of their source.
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
#include <muster/data/statistics.hpp>

namespace muster { inline namespace v0 {

/// A function for map(): every number less the mean of its column, over the column's deviation (1 where that is 0), as
/// statistics() found them. Of images as of normalise, each channel with its own; of tables, which are records of one
/// field of float32 with one extent, each feature.
class standardise {
 public:
  /// `by` are of the same columns; of images, `output` is the layout of the result.
  explicit standardise(source_statistics by, image_layout output = image_layout::hwc)
      : statistics_(std::move(by)), layout_(output) {}
  /// As record_transform has them. `output` throws configuration_error for records of other columns than the
  /// statistics.
  [[nodiscard]] record_schema output(const record_schema& in);
  [[nodiscard]] std::uint64_t version() const noexcept;  ///< depends on the statistics: a cache knows others
  void operator()(std::span<const std::byte> from, std::span<std::byte> to) const noexcept;  ///< thread safe

 private:
  source_statistics statistics_;
  image_layout layout_;
  std::optional<normalise> image_;
  std::vector<float> mean_, scale_;
};
static_assert(record_transform<standardise>);

/// A step of a pipeline: map(standardise(...)) by the statistics of the loader's source, which are looked up or
/// computed when the step is added: each rank reads all of the source where its manifest has none. In the source's
/// order of columns, and of what the source has now: where data grow, or a training is resumed, give the statistics
/// yourself.
struct standardise_by_source {
  image_layout output = image_layout::hwc;
  int threads = 0;  ///< to compute them
};
[[nodiscard]] loader operator|(loader from, standardise_by_source step);

}}  // namespace muster::v0
