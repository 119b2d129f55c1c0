// Cuts data into shards at the start of a job and sends each shard to the rank that holds it.
#pragma once

#include <optional>
#include <string>

#include <muster/comm/group.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 {

/// The options of place_shards().
struct placement_options {
  /// The assignment of records to one shard per rank, as in shard_rule: "range", "hash:KEY" or, with a weight for each
  /// rank, "weights:2,1,1".
  std::string rule = "range";
  int root = 0;  ///< the rank that has the data
};

/// Cuts the root's records into a shard for each rank and sends each rank its shard, which that rank writes into its
/// `folder`. Collective; call it before training. All ranks receive the same manifest, and each opens its own shard by
/// "shards:FOLDER?local". Ranks may name one folder or several. If all ranks have the shards of these records already,
/// as after a restart, nothing is sent. `records` is used at the root alone. About 2 MiB are under way at once.
///
/// Throws configuration_error for a folder with other records and for a folder that cannot be written, the errors of
/// the rule and the source, peer_failure at the other ranks, and the errors of collectives.
void place_shards(group& ranks, const std::optional<data::any_record_source>& records, const std::string& folder,
                  const placement_options& options = {});

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
