// Exchange of strings and objects between the ranks of a group. All functions are collective.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/group.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns all ranks' strings, by rank.
[[nodiscard]] std::vector<std::string> allgather_strings(group& ranks, std::string mine);
/// Returns the string of `rank`, at every rank.
[[nodiscard]] std::string broadcast_string(group& ranks, std::string mine, int rank);

/// Returns a copy of the object that `make` returns at rank 0, such as a std::shared_ptr. The ranks are threads in this
/// process.
template <class Make>
[[nodiscard]] auto construct_on_rank_zero(group& ranks, const Make& make) {
  decltype(make()) object;
  std::uint64_t address[] = {0};
  if (ranks.rank() == 0) {
    object = make();
    address[0] = reinterpret_cast<std::uint64_t>(&object);
  }
  broadcast(ranks, std::span(address), 0);
  if (ranks.rank() != 0) object = *reinterpret_cast<const decltype(object)*>(address[0]);
  barrier(ranks);  // rank 0's object lives until all ranks have copied it
  return object;
}

inline std::vector<std::string> allgather_strings(group& ranks, std::string mine) {
  const std::uint64_t length[] = {mine.size()};
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, length, lengths);
  const auto longest = *std::max_element(lengths.begin(), lengths.end());
  mine.resize(longest);
  std::string all(longest * lengths.size(), '\0');
  if (longest > 0) allgather(ranks, mine, all);
  std::vector<std::string> words;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) words.push_back(all.substr(rank * longest, lengths[rank]));
  return words;
}

inline std::string broadcast_string(group& ranks, std::string mine, int rank) {
  std::uint64_t size[] = {mine.size()};
  broadcast(ranks, std::span(size), rank);
  mine.resize(size[0]);
  if (!mine.empty()) broadcast(ranks, mine, rank);
  return mine;
}

}}}  // namespace muster::v0::detail
