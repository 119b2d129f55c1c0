// Exchange of strings and objects between the ranks of a group. All functions are collective.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

}}}  // namespace muster::v0::detail
