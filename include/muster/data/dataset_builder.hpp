// The way in which readers and generators create a dataset: declare the shape, fill the memory in place, call finish().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/data/dataset.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The memory of a future dataset, initially zero. Threads may fill different samples at once. finish() copies nothing.
class dataset_builder {
 public:
  /// Creates a builder for `row_count` samples of `features` values each.
  [[nodiscard]] static dataset_builder dense(std::string name, std::size_t row_count, std::size_t features);
  /// Creates a builder for `row_count` samples that have `entries` values in total, with indices below `features` (at
  /// most 2^32 - 1). Throws configuration_error for more features.
  [[nodiscard]] static dataset_builder sparse(std::string name, std::size_t row_count, std::size_t features,
                                              std::size_t entries);

  /// Returns the labels in the order of the samples.
  [[nodiscard]] std::span<float> labels() noexcept { return samples_->labels.span(); }
  /// Returns the features of sample `i`, in a dense dataset.
  [[nodiscard]] std::span<float> row(std::size_t i) noexcept {
    return {samples_->values.data() + i * samples_->stride, samples_->features};
  }
  /// Returns the number of floats from the start of one row to the start of the next, in a dense dataset.
  [[nodiscard]] std::size_t stride() const noexcept { return samples_->stride; }
  /// Returns rows + 1 offsets into indices() and values(), in a sparse dataset. The first offset must be 0, and the
  /// last offset must be the number of entries.
  [[nodiscard]] std::span<std::uint64_t> offsets() noexcept { return samples_->offsets.span(); }
  /// Returns the indices, in a sparse dataset. Indices count from 0 and must ascend within a sample.
  [[nodiscard]] std::span<std::uint32_t> indices() noexcept { return samples_->indices.span(); }
  /// Returns the values in the order of the indices, in a sparse dataset.
  [[nodiscard]] std::span<float> values() noexcept { return samples_->values.span(); }

  /// Sets the invalid samples, ascending by id. Their values and labels are zero. See dataset::bad().
  void set_bad(std::vector<bad_record> bad) { samples_->bad = std::move(bad); }

  /// Sets the names of a table's columns, and the notes of its reader; see any_record_source::notes().
  void set_columns(detail::table_names columns, std::vector<std::string> notes) {
    samples_->columns = std::move(columns);
    samples_->notes = std::move(notes);
  }

  /// Returns the dataset. Afterwards the builder is empty and may only be destroyed. Computes the digest on `threads`
  /// threads (0: as many as this process may use). Throws configuration_error if offsets or indices violate the rules
  /// above.
  [[nodiscard]] dataset finish(int threads = 0);

 private:
  explicit dataset_builder(std::unique_ptr<detail::samples> samples) noexcept : samples_(std::move(samples)) {}

  std::unique_ptr<detail::samples> samples_;
};

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::dataset_builder;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
