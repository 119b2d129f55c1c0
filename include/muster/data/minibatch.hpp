// A rank's part of a batch.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/cursor.hpp>
#include <muster/data/record_schema.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A rank's part of a global batch. It converts to false at the end of the epoch. It converts to true with `samples`
/// empty if only other ranks have samples.
///
/// It is a view of memory that the loader owns and reuses. It is valid until the loader's next() moves to another
/// batch, or the loader is opened at another position, moved by next_epoch(grown) or destroyed. The records of a fixed
/// schema are stored one after another without gaps and begin on a 64-byte boundary. The whole is a row-major tensor of
/// samples.size() x shape, and an Eigen::Map over it copies nothing.
///
/// `global_size` is the size of the step's global batch. Records that a policy leaves out are not in `samples`, at this
/// rank or another. With such a policy the number of samples used in a step is therefore the sum of samples.size() over
/// the ranks.
struct minibatch {
  /// Ids of this rank's samples, in order. May be empty although other ranks have samples.
  std::span<const sample_id> samples;
  std::uint64_t global_size = 0;  ///< number of samples at all ranks together: the divisor for a mean over the batch
  std::uint64_t epoch = 0;        ///< from 0
  std::uint64_t position = 0;     ///< number of samples in the epoch before this batch

  // The following members are empty if the loader yields ids alone.

  std::span<const float> labels;     ///< schema->labels.size() labels for each sample
  std::span<const std::byte> bytes;  ///< the samples' contents
  /// the records' offsets in `bytes`, and the end; empty if all records have the same size
  std::span<const std::uint64_t> offsets;
  const record_schema* schema = nullptr;  ///< schema of the pipeline's results
  std::uint64_t left_out = 0;             ///< number of bad records in this part

  [[nodiscard]] explicit operator bool() const noexcept { return global_size != 0; }

  /// Returns the elements in all samples, for records with a single field. Throws mismatch_error if they are not of
  /// type T.
  template <element T>
  [[nodiscard]] std::span<const T> values() const {
    if (schema->form != record_form::fixed || schema->fields.size() != 1 || schema->fields[0].type != dtype_of<T>()) {
      throw mismatch_error(
          "a batch of " + to_string(*schema) + " has no values of " + std::string(to_string(dtype_of<T>())) +
          " (values() requires records with this type as their only field); use record(), or add a map");
    }
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  /// Returns the bytes of sample `i` < samples.size().
  [[nodiscard]] std::span<const std::byte> record(std::size_t i) const noexcept {
    assert(i < samples.size());
    if (!offsets.empty()) return bytes.subspan(offsets[i], offsets[i + 1] - offsets[i]);
    const std::size_t size = bytes.size() / samples.size();
    return bytes.subspan(i * size, size);
  }

  /// Returns the samples in this range, which must end at samples.size() or before. The result is a view like this
  /// object.
  [[nodiscard]] minibatch part(index_range indices) const;
  /// Divides the samples into `batch_count` micro-batches, in order, whose sizes differ by at most one. They are views
  /// like this object, and the first has all of `left_out`. Some are empty if there are fewer samples than
  /// micro-batches, so that every rank has the same number. Throws configuration_error for a count below 1.
  [[nodiscard]] std::vector<minibatch> split(int batch_count) const;
};

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::minibatch;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
