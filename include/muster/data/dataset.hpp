// Samples in memory: dense rows or sparse ones (CSR), each with a label.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 {

/// How the features of a dataset lie in memory.
enum class layout {
  automatic,  ///< dense when at least half of the values are given, sparse otherwise: whichever takes less memory
  dense,
  sparse
};

/// What every reader of feature files can be asked for.
struct read_options {
  muster::layout layout = muster::layout::automatic;
  /// The dataset has at least so many features; the columns that a file never names are zero. Lets a test set have the
  /// width of its training set.
  std::size_t min_features = 0;
  /// Threads to read with; 0 means as many as this process may use. The result is the same for any number.
  int threads = 0;
  /// Whether a line that says no sample ends the reading (a data_error), or keeps its id as a bad record: a sample
  /// whose values and label are zero, of which dataset::read() tells. Only such lines: a file that has no lines at all
  /// is an error either way.
  bool keep_bad_records = false;
  /// Whether records that are parsed when they are read will do, for text that is large. What open_source() asks for;
  /// readers of datasets do not look at it.
  bool on_demand = false;
  /// Of a file on a server.
  http_options http{};
};

/// The non-zero features of one sample: `values[k]` belongs to feature `indices[k]`. Indices count from 0 and ascend.
struct sparse_row {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

namespace detail {

// What a dataset shares between its copies. Dense: `values` are `size` rows of `stride` floats. Sparse: row i has the
// entries offsets[i] .. offsets[i + 1] of `indices` and `values`.
struct samples : source_facts {
  std::size_t features = 0;
  std::size_t stride = 0;
  bool sparse = false;
  buffer<float> labels;
  buffer<float> values;
  buffer<std::uint64_t> offsets;
  buffer<std::uint32_t> indices;
  std::vector<bad_record> bad;  // by id
};

}  // namespace detail

/// Samples that never change: a copy shares them (O(1)), and any number of threads may read them at once.
/// Made by a reader such as read_libsvm(), by synthetic_epsilon(), or by hand with a dataset_builder.
class dataset : public detail::source_with_facts {
 public:
  /// A dataset without samples.
  dataset();
  /// Takes over what a dataset_builder made.
  explicit dataset(std::shared_ptr<const detail::samples> samples) noexcept : samples_(std::move(samples)) {
    facts_ = samples_.get();
  }

  /// The number of features of every sample.
  [[nodiscard]] std::size_t features() const noexcept { return samples_->features; }
  /// Which of row() and sparse() is there.
  [[nodiscard]] bool is_sparse() const noexcept { return samples_->sparse; }

  /// The label of sample `i` < size(), as the file has it: -1 / +1, 0 / 1, a class number or a target of regression.
  [[nodiscard]] float label(std::size_t i) const noexcept { return labels()[i]; }
  [[nodiscard]] std::span<const float> labels() const noexcept { return samples_->labels.span(); }

  /// The features() values of sample `i` < size() of a dense dataset. The row starts on a 64-byte boundary, and what
  /// lies between its end and the next row is zero, so that a kernel may run over stride() floats.
  [[nodiscard]] std::span<const float> row(std::size_t i) const noexcept {
    assert(!is_sparse() && i < size());
    return {samples_->values.data() + i * samples_->stride, samples_->features};
  }
  /// Floats from the start of one dense row to that of the next: features() rounded up to a multiple of 16.
  [[nodiscard]] std::size_t stride() const noexcept { return samples_->stride; }

  /// The features of sample `i` < size() of a sparse dataset.
  [[nodiscard]] sparse_row sparse(std::size_t i) const noexcept {
    assert(is_sparse() && i < size());
    const std::uint64_t first = samples_->offsets[i];
    const std::uint64_t count = samples_->offsets[i + 1] - first;
    return {{samples_->indices.data() + first, count}, {samples_->values.data() + first, count}};
  }

  /// The distinct labels, ascending. Sorts all of them: O(n log n) at every call.
  [[nodiscard]] std::vector<float> classes() const;
  /// The lines that say no sample, by id; none unless read_options::keep_bad_records let them in.
  [[nodiscard]] std::span<const bad_record> bad() const noexcept { return samples_->bad; }

  // As a record_source: a dense sample is a record of features() floats, a sparse one of as many sparse_entry as it has
  // values; either has one label. Dense records are mapped. The digest is of labels, features and layout, not of the
  // name, which is what it was made from: "libsvm:PATH", "epsilon:1000".

  /// Bytes of each record.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  /// Copies records and labels; see record_source.
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Whether view() may be called: the dataset is dense.
  [[nodiscard]] bool mapped() const noexcept { return !is_sparse(); }
  /// row() as bytes. Throws data_error for a bad record.
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;

 private:
  [[nodiscard]] const bad_record* find_bad(sample_id id) const noexcept;

  std::shared_ptr<const detail::samples> samples_;
};
static_assert(mapped_record_source<dataset>);

/// Reads all records of a source into a dataset: the numbers of a fixed record, whatever their types, become its
/// features, field after field; a sparse record stays one. The label is the first one, or 0 where there are none. Bad
/// records are errors, or kept with read_options::keep_bad_records.
///
/// Throws configuration_error for records of bytes, which have no numbers, and for a layout that the records do not
/// have; data_error for the first bad record.
[[nodiscard]] dataset load(const any_record_source& source, const read_options& options = {});

}}  // namespace muster::v0
