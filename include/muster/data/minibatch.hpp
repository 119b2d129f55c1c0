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

namespace muster { inline namespace v0 {

/// One rank's part of a global batch. False when the epoch is over; with `samples` empty when the other ranks alone
/// have some.
///
/// It is a view of memory that the loader owns and uses again: valid until the loader's next() goes to another batch,
/// or the loader is opened elsewhere, moved on by next_epoch(grown) or destroyed. The records of a fixed schema lie one
/// behind another without gaps and begin on a 64-byte boundary, so that the whole is a row-major tensor of
/// samples.size() x shape and an Eigen::Map over it copies nothing.
///
/// `global_size` is the size of the step's global batch. Records that a policy leaves out are not in `samples` any
/// more, here or at another rank, so that with such a policy the true count of a step is the sum of samples.size() over
/// the ranks.
struct minibatch {
  /// Ids of this rank's samples, in order; possibly none although the others have some.
  std::span<const sample_id> samples;
  std::uint64_t global_size = 0;  ///< samples of all ranks together: what a mean over the batch divides by
  std::uint64_t epoch = 0;        ///< from 0
  std::uint64_t position = 0;     ///< samples of the epoch before this batch

  // What follows is empty from a loader that gives ids alone.

  std::span<const float> labels;           ///< schema->labels.size() of each sample
  std::span<const std::byte> bytes;        ///< of all samples
  std::span<const std::uint64_t> offsets;  ///< where each record begins in `bytes`, and the end; empty if all are fixed
  const record_schema* schema = nullptr;   ///< what the pipeline makes
  std::uint64_t left_out = 0;              ///< bad records of this part

  [[nodiscard]] explicit operator bool() const noexcept { return global_size != 0; }

  /// All elements of all samples, for records of one field. Throws mismatch_error if they are not of type T.
  template <element T>
  [[nodiscard]] std::span<const T> values() const {
    if (schema->form != record_form::fixed || schema->fields.size() != 1 || schema->fields[0].type != dtype_of<T>()) {
      throw mismatch_error("a batch of " + to_string(*schema) + " has no values of " +
                           std::string(to_string(dtype_of<T>())) +
                           " alone (records have one field of that type for that); use record(), or add a map");
    }
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  /// The bytes of sample `i` < samples.size().
  [[nodiscard]] std::span<const std::byte> record(std::size_t i) const noexcept {
    assert(i < samples.size());
    if (!offsets.empty()) return bytes.subspan(offsets[i], offsets[i + 1] - offsets[i]);
    const std::size_t size = bytes.size() / samples.size();
    return bytes.subspan(i * size, size);
  }

  /// The samples in this range, which ends at samples.size() at the latest; a view as this one is.
  [[nodiscard]] minibatch part(index_range of) const;
  /// Its samples in `count` micro-batches, in order, of sizes that differ by one at most; views as this one is. Some
  /// are empty where there are fewer samples: every rank has as many. Throws configuration_error for a count below 1.
  [[nodiscard]] std::vector<minibatch> split(int count) const;
};

}}  // namespace muster::v0
