// Which ranks of a group share a host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// The ranks of a group by host, as all of them know it: hosts in the order of their first ranks, ranks ascending.
struct host_map {
  /// `host_of_rank` is any number that ranks have in common if and only if they share a host.
  explicit host_map(std::span<const std::uint64_t> host_of_rank) {
    std::vector<std::uint64_t> seen;
    for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
      const auto found = std::find(seen.begin(), seen.end(), host_of_rank[r]);
      const auto index = static_cast<std::size_t>(found - seen.begin());
      if (found == seen.end()) {
        seen.push_back(host_of_rank[r]);
        hosts.emplace_back();
      }
      host_of.push_back(static_cast<int>(index));
      place_of.push_back(static_cast<int>(hosts[index].size()));
      hosts[index].push_back(static_cast<int>(r));
    }
    rails = static_cast<int>(host_of_rank.size());
    for (const auto& ranks : hosts) rails = std::min(rails, static_cast<int>(ranks.size()));
  }

  [[nodiscard]] int host(int rank) const { return host_of[static_cast<std::size_t>(rank)]; }
  /// The number of a rank among those of its host.
  [[nodiscard]] int place(int rank) const { return place_of[static_cast<std::size_t>(rank)]; }
  /// The ranks that rank shares its host with, itself among them.
  [[nodiscard]] const std::vector<int>& neighbours(int rank) const {
    return hosts[static_cast<std::size_t>(host(rank))];
  }
  /// One rank of each host: that of number `place` there; of the host of `instead`, that rank (-1 for none).
  [[nodiscard]] std::vector<int> across(int place, int instead = -1) const {
    std::vector<int> ranks;
    for (const auto& host : hosts) ranks.push_back(host[static_cast<std::size_t>(place)]);
    if (instead >= 0) ranks[static_cast<std::size_t>(host(instead))] = instead;
    return ranks;
  }
  [[nodiscard]] bool one_host() const noexcept { return hosts.size() == 1; }
  /// Whether no rank shares its host with another.
  [[nodiscard]] bool all_alone() const noexcept { return hosts.size() == host_of.size(); }

  std::vector<std::vector<int>> hosts;
  std::vector<int> host_of;   ///< by rank
  std::vector<int> place_of;  ///< by rank: its number among the ranks of its host
  int rails = 0;              ///< so many ranks every host has: so many can talk to their like at the same time
};

}}}  // namespace muster::v0::detail
