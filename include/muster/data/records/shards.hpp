// Cutting records into shards: which record goes where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <muster/data/cursor.hpp>
#include <muster/data/record_schema.hpp>

namespace muster { inline namespace v0 {

/// The shard of each record of a source. A value.
class shard_rule {
 public:
  /// Of a source of so many records, `by`:
  /// - "range": shards of neighbours and about the same number of records;
  /// - "weights:2,1,1": of neighbours, in these proportions, as many as there are weights (`shards`: 0 or as many);
  /// - "hash:KEY": by the bytes of a label, of a field of fixed records or of a column of a table, or of all of a
  /// record
  ///   with the key "record".
  ///   Records with one key are in one shard. With another number of shards the fewest records move: one goes to a new
  ///   shard or stays (rendezvous hashing; Thaler and Ravishankar 1998, https://doi.org/10.1109/90.663936).
  /// `columns` are the columns of the source. Throws configuration_error for anything else, for no shards, and for
  /// weights that add up to nothing.
  shard_rule(std::string_view by, std::uint32_t shards, const record_schema& schema, std::uint64_t records,
             const detail::table_names& columns = {});

  /// The number of shards.
  [[nodiscard]] std::uint32_t shards() const noexcept { return shards_; }
  /// The shard of this record, below shards(). O(1), by a hash O(shards()).
  [[nodiscard]] std::uint32_t operator()(sample_id id, std::span<const std::byte> record,
                                         std::span<const float> labels) const noexcept;

 private:
  void use_weights(const std::vector<double>& weights, std::uint64_t records);
  void use_key(std::string_view key, const record_schema& schema, const detail::table_names& columns);

  std::uint32_t shards_;
  std::vector<std::uint64_t> ends_{};  // of the ranges; none: by hash
  std::size_t label_ = std::numeric_limits<std::size_t>::max();
  std::size_t offset_ = 0, bytes_ = std::numeric_limits<std::size_t>::max();  // of the key in the record
};

}}  // namespace muster::v0
