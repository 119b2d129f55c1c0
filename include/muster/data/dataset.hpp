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

namespace muster { inline namespace v0 { namespace data {

/// The storage format of a dataset's features in memory.
enum class layout {
  automatic,  ///< dense if at least half of the values are given, sparse otherwise: the format with less memory
  dense,
  sparse
};

/// Options of every reader of feature files.
struct read_options {
  data::layout layout = data::layout::automatic;
  /// Minimum number of features of the dataset. Columns that a file never names are zero. Lets a test set have the
  /// width of its training set.
  std::size_t min_features = 0;
  /// Number of threads for reading. 0: as many as this process may use. The result is the same for any number.
  int threads = 0;
  /// If false, a line that is not a valid sample ends the reading with a data_error. If true, the line keeps its id as
  /// a bad record: a sample whose values and label are zero, reported by dataset::read(). Applies to such lines only. A
  /// file without lines is an error in both cases.
  bool keep_bad_records = false;
  /// Set if records of a large text may be parsed at the time of reading. open_source() sets it. Readers of datasets
  /// ignore it.
  bool on_demand = false;
  /// Options for a file on a server.
  http_options http{};
};

/// The non-zero features of a sample: `values[k]` belongs to feature `indices[k]`. Indices count from 0 and ascend.
struct sparse_row {
  std::span<const std::uint32_t> indices;
  std::span<const float> values;
};

namespace detail {

// The state that copies of a dataset share. Dense: `values` holds `size` rows of `stride` floats. Sparse: row i has the
// entries offsets[i] .. offsets[i + 1] of `indices` and `values`.
struct samples : source_facts {
  std::size_t features = 0;
  std::size_t stride = 0;
  bool sparse = false;
  buffer<float> labels;
  buffer<float> values;
  buffer<std::uint64_t> offsets;
  buffer<std::uint32_t> indices;
  std::vector<bad_record> bad;  // ascending by id
};

}  // namespace detail

/// Samples that never change. A copy shares the samples (O(1)), and any number of threads may read them at once.
/// Created by a reader such as read_libsvm(), by synthetic_epsilon(), or by the user with a dataset_builder.
class dataset : public detail::source_with_facts {
 public:
  /// Creates a dataset without samples.
  dataset();
  /// Takes ownership of the samples of a dataset_builder.
  explicit dataset(std::shared_ptr<const detail::samples> samples) noexcept : samples_(std::move(samples)) {
    facts_ = samples_.get();
  }

  /// Returns the number of features of every sample.
  [[nodiscard]] std::size_t features() const noexcept { return samples_->features; }
  /// Returns true if sparse() is available, and false if row() is available.
  [[nodiscard]] bool is_sparse() const noexcept { return samples_->sparse; }

  /// Returns the label of sample `i` < size(), as in the file: -1 / +1, 0 / 1, a class number or a regression target.
  [[nodiscard]] float label(std::size_t i) const noexcept { return labels()[i]; }
  [[nodiscard]] std::span<const float> labels() const noexcept { return samples_->labels.span(); }

  /// Returns the features() values of sample `i` < size() of a dense dataset. The row starts on a 64-byte boundary. The
  /// padding between its end and the next row is zero, so a kernel may process stride() floats.
  [[nodiscard]] std::span<const float> row(std::size_t i) const noexcept {
    assert(!is_sparse() && i < size());
    return {samples_->values.data() + i * samples_->stride, samples_->features};
  }
  /// Returns the number of floats from the start of a dense row to the start of the next row: features() rounded up to
  /// a multiple of 16.
  [[nodiscard]] std::size_t stride() const noexcept { return samples_->stride; }

  /// Returns the features of sample `i` < size() of a sparse dataset.
  [[nodiscard]] sparse_row sparse(std::size_t i) const noexcept {
    assert(is_sparse() && i < size());
    const std::uint64_t first = samples_->offsets[i];
    const std::uint64_t count = samples_->offsets[i + 1] - first;
    return {{samples_->indices.data() + first, count}, {samples_->values.data() + first, count}};
  }

  /// Returns the distinct labels in ascending order. Sorts all labels: O(n log n) at every call.
  [[nodiscard]] std::vector<float> classes() const;
  /// Returns the invalid lines as bad records, ascending by id. There are none unless read_options::keep_bad_records is
  /// set.
  [[nodiscard]] std::span<const bad_record> bad() const noexcept { return samples_->bad; }

  // The functions of record_source. A dense sample is a record of features() floats. A sparse sample is a record with a
  // sparse_entry for each value. Both have one label. Dense records are mapped. The digest covers labels, features and
  // layout, but not the name. The name is the origin of the dataset: "libsvm:PATH", "epsilon:1000".

  /// Writes the size in bytes of each record of `ids` to `out`.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  /// Copies records and labels. See record_source.
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Returns true if view() may be called: the dataset is dense.
  [[nodiscard]] bool mapped() const noexcept { return !is_sparse(); }
  /// Returns row() as bytes. Throws data_error for a bad record.
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;

 private:
  [[nodiscard]] const bad_record* find_bad(sample_id id) const noexcept;

  std::shared_ptr<const detail::samples> samples_;
};
static_assert(mapped_record_source<dataset>);

/// Reads all records of a source into a dataset. The numbers of a fixed record, of any type, become its features, field
/// after field. A sparse record stays sparse. The label is the record's first label, or 0 if the record has no labels.
/// Bad records are errors, or kept with read_options::keep_bad_records.
///
/// Throws configuration_error for records of bytes, which have no numbers, and for a layout that the records do not
/// have. Throws data_error for the first bad record.
[[nodiscard]] dataset load(const any_record_source& source, const read_options& options = {});

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::dataset;
using data::layout;
using data::load;
using data::read_options;
using data::sparse_row;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
