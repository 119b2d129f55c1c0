// The map from the ranks of a group to their hosts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// The ranks of a group, by host. The map is the same at all ranks: hosts are in the order of their first ranks, and
/// the ranks on a host are ascending.
struct host_map {
  /// Makes the map. Two ranks have the same number in `host_of_rank` if and only if they share a host.
  explicit host_map(std::span<const std::uint64_t> host_of_rank) {
    std::vector<std::uint64_t> known_hosts;
    for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
      const auto found = std::find(known_hosts.begin(), known_hosts.end(), host_of_rank[r]);
      const auto index = static_cast<std::size_t>(found - known_hosts.begin());
      if (found == known_hosts.end()) {
        known_hosts.push_back(host_of_rank[r]);
        hosts.emplace_back();
      }
      host_of.push_back(static_cast<int>(index));
      local_rank_of.push_back(static_cast<int>(hosts[index].size()));
      hosts[index].push_back(static_cast<int>(r));
    }
    rails = static_cast<int>(host_of_rank.size());
    for (const auto& ranks : hosts) rails = std::min(rails, static_cast<int>(ranks.size()));
  }

  /// Returns the index of the host that `rank` runs on.
  [[nodiscard]] int host(int rank) const { return host_of[static_cast<std::size_t>(rank)]; }
  /// Returns the number of a rank among the ranks on its host.
  [[nodiscard]] int local_rank(int rank) const { return local_rank_of[static_cast<std::size_t>(rank)]; }
  /// Returns the ranks on the host of `rank`, including `rank`.
  [[nodiscard]] const std::vector<int>& neighbours(int rank) const {
    return hosts[static_cast<std::size_t>(host(rank))];
  }
  /// Returns one rank of every host: the rank with number `local_rank` on its host. On the host of `root_rank`, if that
  /// is not -1, it is `root_rank`.
  [[nodiscard]] std::vector<int> across(int local_rank, int root_rank = -1) const {
    std::vector<int> ranks;
    for (const auto& host : hosts) ranks.push_back(host[static_cast<std::size_t>(local_rank)]);
    if (root_rank >= 0) ranks[static_cast<std::size_t>(host(root_rank))] = root_rank;
    return ranks;
  }
  /// Returns true if all ranks are on one host.
  [[nodiscard]] bool one_host() const noexcept { return hosts.size() == 1; }
  /// Returns true if no rank shares its host with another.
  [[nodiscard]] bool all_alone() const noexcept { return hosts.size() == host_of.size(); }

  std::vector<std::vector<int>> hosts;
  std::vector<int> host_of;        ///< by rank
  std::vector<int> local_rank_of;  ///< by rank: its number among the ranks on its host
  /// number of ranks on the smallest host: so many ranks of a host can exchange blocks with other hosts in parallel
  int rails = 0;
};

}}}  // namespace muster::v0::detail
