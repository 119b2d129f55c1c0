// Cutting data into shards at the start of a job, and sending each to the rank that is to hold it.
#pragma once

#include <optional>
#include <string>

#include <muster/comm/group.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 {

/// How place_shards() cuts.
struct placement_options {
  /// A shard for each rank, as shard_rule has it: "range", "hash:KEY" or, with a weight for each, "weights:2,1,1".
  std::string by = "range";
  int root = 0;  ///< the rank that has the data
};

/// Collective, before training: the root cuts its records into a shard for each rank and sends each rank its own, which
/// that writes into its `folder`. All get the same manifest; each opens what it holds by "shards:FOLDER?local". Ranks
/// may name one folder or several. Where all have the shards of these records already, as after a restart, nothing is
/// sent. `from` is used at the root alone. About 2 MiB are on their way at once.
///
/// Throws configuration_error for a folder with other records and one that cannot be written, and what the rule and the
/// source throw; peer_failure at the other ranks; the errors of collectives.
void place_shards(group& ranks, const std::optional<any_record_source>& from, const std::string& folder,
                  const placement_options& how = {});

}}  // namespace muster::v0
