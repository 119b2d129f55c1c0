// What the ranks of a group tell each other that is no array of numbers. All of it is collective.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/group.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// What each rank says, by rank.
[[nodiscard]] std::vector<std::string> words_of_all(group& ranks, std::string mine);
/// What one rank says.
[[nodiscard]] std::string word_of(group& ranks, std::string mine, int rank);

/// A copy of what rank 0 makes, such as a std::shared_ptr. The ranks are threads of this process.
template <class Make>
[[nodiscard]] auto made_by_first(group& ranks, const Make& make) {
  decltype(make()) made;
  std::uint64_t where[] = {0};
  if (ranks.rank() == 0) {
    made = make();
    where[0] = reinterpret_cast<std::uint64_t>(&made);
  }
  broadcast(ranks, std::span(where), 0);
  if (ranks.rank() != 0) made = *reinterpret_cast<const decltype(made)*>(where[0]);
  barrier(ranks);  // rank 0's stays until all have theirs
  return made;
}

}}}  // namespace muster::v0::detail
