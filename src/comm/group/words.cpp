#include "words.hpp"

#include <algorithm>

#include <muster/comm/collectives/allgather.hpp>

namespace muster::inline v0::detail {

std::vector<std::string> words_of_all(group& ranks, const std::string& mine) {
  const std::uint64_t length[] = {mine.size()};
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, length, lengths);
  const auto longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::uint8_t> padded(longest), all(longest * lengths.size());
  std::copy(mine.begin(), mine.end(), padded.begin());
  if (longest > 0) allgather(ranks, padded, all);
  std::vector<std::string> words;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    words.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[rank]));
  }
  return words;
}

std::string word_of(group& ranks, std::string mine, int rank) {
  std::uint64_t size[] = {mine.size()};
  broadcast(ranks, std::span(size), rank);
  mine.resize(size[0]);
  if (!mine.empty()) broadcast(ranks, std::span(reinterpret_cast<std::uint8_t*>(mine.data()), mine.size()), rank);
  return mine;
}

}  // namespace muster::inline v0::detail
