// Exchange between all ranks, one text per rank, through a store.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {

/// Exchanges one value per rank. Collective over `rank_count` ranks: returns all ranks' values, by rank. `prefix` is
/// the start of the used keys, the same at all ranks and new: a prefix may be used again only when all ranks have
/// returned. Rank 0 returns last, so that it may close a store that it serves. Afterwards the store contains none of
/// these keys. Values are any bytes, up to 1 MiB less 16 bytes each. Takes O(size) calls at rank 0 and a few at each
/// other rank.
///
/// Throws timeout_error (`missing`: the ranks that did not call this, or have not read the values), at most a second
/// after `until`. Throws configuration_error when two processes have the same rank, and at all ranks
/// when ranks have different `rank_count`. Throws the errors of the store.
[[nodiscard]] std::vector<std::string> exchange(any_store& store, std::string_view prefix, int rank, int rank_count,
                                                std::string_view mine, clock::time_point until);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
