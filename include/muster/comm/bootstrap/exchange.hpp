// Every rank gives all ranks one text, through a store.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {

/// Collective over `size` ranks: returns the values of all, by rank. `prefix` begins the keys it uses and is the same
/// at all ranks and new: it may be used again only when all have returned. Rank 0 returns last, so that it may close a
/// store that it serves; nothing is left in the store. Values are any bytes, up to 1 MiB each. Takes O(size) calls at
/// rank 0 and a few elsewhere.
///
/// Throws timeout_error (`missing`: the ranks that did not come), at most a second after `until`;
/// configuration_error when a rank is there twice; and what the store throws.
[[nodiscard]] std::vector<std::string> exchange(any_store& store, std::string_view prefix, int rank, int size,
                                                std::string_view mine, clock::time_point until);

}}  // namespace muster::v0
