// The assignment of records to shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <muster/data/cursor.hpp>
#include <muster/data/record_schema.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A rule that assigns each record of a source to a shard. A value.
class shard_rule {
 public:
  /// Creates the rule `rule` for a source of `records` records:
  /// - "range": shards of neighbouring records with about the same number of records each.
  /// - "weights:2,1,1": shards of neighbouring records in these proportions, a shard for each weight (`shards`: 0 or
  ///   the number of weights).
  /// - "hash:KEY": by a hash of a label's bytes, of a field's bytes (fixed records), of a column's bytes (tables), or,
  ///   with the key "record", of the whole record. Records with the same key are in the same shard. A change of the
  ///   number of shards moves as few records as possible: a record moves to a new shard or stays (rendezvous hashing;
  ///   Thaler and Ravishankar 1998, https://doi.org/10.1109/90.663936).
  /// `columns` are the columns of the source. Throws configuration_error for any other rule, for no shards, and for
  /// weights with the sum 0.
  shard_rule(std::string_view rule, std::uint32_t shards, const record_schema& schema, std::uint64_t records,
             const detail::table_names& columns = {});

  /// Returns the number of shards.
  [[nodiscard]] std::uint32_t shards() const noexcept { return shards_; }
  /// Returns the shard of the record, below shards(). O(1), and O(shards()) for a hash.
  [[nodiscard]] std::uint32_t operator()(sample_id id, std::span<const std::byte> record,
                                         std::span<const float> labels) const noexcept;

 private:
  void use_weights(const std::vector<double>& weights, std::uint64_t records);
  void use_key(std::string_view key, const record_schema& schema, const detail::table_names& columns);

  std::uint32_t shards_;
  std::vector<std::uint64_t> ends_{};  // ends of the ranges; empty: by hash
  std::size_t label_ = std::numeric_limits<std::size_t>::max();
  std::size_t offset_ = 0, bytes_ = std::numeric_limits<std::size_t>::max();  // position of the key in the record
};

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
