#include "words.hpp"

#include <algorithm>

#include <muster/comm/collectives/allgather.hpp>

namespace muster { inline namespace v0 { namespace detail {

std::vector<std::string> allgather_strings(group& ranks, std::string mine) {
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

std::string broadcast_string(group& ranks, std::string mine, int rank) {
  std::uint64_t size[] = {mine.size()};
  broadcast(ranks, std::span(size), rank);
  mine.resize(size[0]);
  if (!mine.empty()) broadcast(ranks, mine, rank);
  return mine;
}

}}}  // namespace muster::v0::detail
