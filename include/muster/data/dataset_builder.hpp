// How readers and generators make a dataset: say its shape, fill it in place, finish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/data/dataset.hpp>

namespace muster { inline namespace v0 {

/// The memory of a dataset to be, zeroed. Threads may fill different samples at once; nothing is copied by finish().
class dataset_builder {
 public:
  /// For `rows` samples of `features` values each.
  [[nodiscard]] static dataset_builder dense(std::string name, std::size_t rows, std::size_t features);
  /// For `rows` samples that have `entries` values in total, with indices below `features` (at most 2^32 - 1). Throws
  /// configuration_error for more features.
  [[nodiscard]] static dataset_builder sparse(std::string name, std::size_t rows, std::size_t features,
                                              std::size_t entries);

  /// One label a sample.
  [[nodiscard]] std::span<float> labels() noexcept { return samples_->labels.span(); }
  /// Dense: the features of sample `i`.
  [[nodiscard]] std::span<float> row(std::size_t i) noexcept {
    return {samples_->values.data() + i * samples_->stride, samples_->features};
  }
  /// Dense: floats from the start of one row to that of the next.
  [[nodiscard]] std::size_t stride() const noexcept { return samples_->stride; }
  /// Sparse: rows + 1 offsets into indices() and values(); the first is 0, the last the number of entries.
  [[nodiscard]] std::span<std::uint64_t> offsets() noexcept { return samples_->offsets.span(); }
  /// Sparse: from 0, ascending within a sample.
  [[nodiscard]] std::span<std::uint32_t> indices() noexcept { return samples_->indices.span(); }
  /// Sparse: the value of each index.
  [[nodiscard]] std::span<float> values() noexcept { return samples_->values.span(); }

  /// The samples that say nothing, ascending by id; theirs are zeros. See dataset::bad().
  void set_bad(std::vector<bad_record> bad) { samples_->bad = std::move(bad); }

  /// Sets the names of a table's columns, and the notes of its reader; see any_record_source::notes().
  void set_columns(detail::table_names columns, std::vector<std::string> notes) {
    samples_->columns = std::move(columns);
    samples_->notes = std::move(notes);
  }

  /// The dataset; the builder is empty afterwards and only good for destruction. Computes the digest on `threads`
  /// threads (0: as many as this process may use). Throws configuration_error when offsets or indices break the rules
  /// above.
  [[nodiscard]] dataset finish(int threads = 0);

 private:
  explicit dataset_builder(std::unique_ptr<detail::samples> samples) noexcept : samples_(std::move(samples)) {}

  std::unique_ptr<detail::samples> samples_;
};

}}  // namespace muster::v0
