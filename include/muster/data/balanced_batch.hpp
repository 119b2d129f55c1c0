// Batches with the same number of records of every class.
#pragma once

#include <cstdint>

#include <muster/data/loader.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A step of a pipeline in place of shuffle and batch: every batch has `records` records of each class, the values of
/// the first label. The records of a class are used in a random order, and in an epoch all before a record is used
/// again, so that those of a small class are used more often. The order is a function of seed and epoch in every world,
/// and a cursor continues in it, as in a mixture. An epoch has as many records as the source, without a last batch that
/// is not full. Opening reads all labels once and holds 8 bytes for each record. A bad record is a data_error then.
struct balanced_batch {
  std::uint64_t records;  ///< number for a class, over all ranks; at least 1
  shuffle order;
  balanced_batch(std::uint64_t of_each_class, shuffle requested) noexcept : records(of_each_class), order(requested) {}
};

/// Groups records into balanced batches. Throws configuration_error for 0 records, for a source without labels, in
/// shards or that grows, and for a class with less records than a batch needs.
[[nodiscard]] loader operator|(const any_record_source& source, balanced_batch step);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::balanced_batch;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
