// The shard map: a versioned record that names every range's servers, changed by compare-and-swap only.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/ps/table.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The place of a process in the job, a small number. In a group that was launched together, the rank.
using node_id = std::uint32_t;
inline constexpr node_id no_node = 0xffffffff;
/// Upper bound of places. Messages with higher places are invalid.
inline constexpr node_id most_nodes = 65536;

/// A server or a worker. A process that takes the place of a dead process has a higher incarnation, so that late
/// messages of the dead process are not attributed to the new process.
struct member {
  node_id place = no_node;
  std::uint32_t incarnation = 0;

  friend auto operator<=>(const member&, const member&) = default;
};

/// Returns "3", or "3.2" for an incarnation above 1.
[[nodiscard]] inline std::string to_string(const member& node) {
  return std::to_string(node.place) + (node.incarnation > 1 ? "." + std::to_string(node.incarnation) : "");
}

/// A server that is not fenced.
struct server_entry {
  member node;
  bool leaving = false;  ///< its ranges move to other servers, and then it may end

  friend bool operator==(const server_entry&, const server_entry&) = default;
};

/// The servers of a range. The head receives pushes, each server forwards every push to its successor, and a push is
/// committed when the tail has it. The tail answers pulls. So each server has every entry that its successors have.
struct shard_range {
  std::uint64_t epoch = 0;     ///< version of the map in which this entry changed last
  std::vector<node_id> chain;  ///< from head to tail; empty: no live server has the range
  node_id learner = no_node;   ///< receives a copy from the tail, and then becomes the tail
  node_id leaver = no_node;    ///< leaves the chain when the learner is in the chain

  [[nodiscard]] node_id head() const noexcept { return chain.empty() ? no_node : chain.front(); }
  [[nodiscard]] bool holds(node_id node) const noexcept { return std::ranges::find(chain, node) != chain.end(); }
  friend bool operator==(const shard_range&, const shard_range&) = default;
};

/// The whole record. A plain value whose size is proportional to the number of ranges.
struct shard_map {
  std::uint64_t version = 0;
  std::uint32_t replicas = 0;        ///< number of further copies that every range should have
  std::uint32_t target_servers = 0;  ///< number of servers that should serve; hot spares join while fewer serve
  std::vector<server_entry> servers;
  std::vector<member> workers;  ///< workers that are not fenced; the slowest clock is computed from their clocks
  std::vector<shard_range> ranges;

  [[nodiscard]] const server_entry* server(node_id node) const noexcept;
  [[nodiscard]] bool has_server(const member& node) const noexcept;
  [[nodiscard]] bool has_worker(const member& node) const noexcept;
  /// Returns the first range that no server holds any more.
  [[nodiscard]] std::optional<range_id> lost_range() const noexcept;

  [[nodiscard]] std::string encode() const;
  /// Reads any bytes. Returns nullopt for bytes that are no such record.
  [[nodiscard]] static std::optional<shard_map> decode(std::string_view text);

  friend bool operator==(const shard_map&, const shard_map&) = default;
};

/// Returns the first map. All servers are heads of equally many ranges (or one more), and the copies of a server's
/// ranges are spread over all other servers, so that after its death each other server takes a part. Throws
/// configuration_error without servers or with more ranges than `most_ranges`. With fewer than replicas + 1 servers,
/// ranges have fewer copies until servers join.
[[nodiscard]] shard_map first_map(std::vector<server_entry> servers, std::vector<member> workers, std::size_t ranges,
                                  std::uint32_t replicas);

/// Returns the map without these servers, with the next version. Dead servers are always removed. A suspect stays while
/// it is the last holder of some range. Returns nullopt if nothing changes.
[[nodiscard]] std::optional<shard_map> without_servers(const shard_map& map, std::span<const member> dead,
                                                       std::span<const member> suspects);
/// Returns the map with a further worker, or nullopt if the worker is in the map.
[[nodiscard]] std::optional<shard_map> with_worker(const shard_map& map, const member& node);
/// Returns the map without a worker.
[[nodiscard]] std::optional<shard_map> without_worker(const shard_map& map, const member& node);
/// Returns the map in which `servers` of the candidates serve, now and after deaths. Candidates that already serve are
/// preferred. The other serving candidates become leaving, and an added server holds no range yet. Returns nullopt if
/// nothing changes. Throws configuration_error if there are too few candidates.
[[nodiscard]] std::optional<shard_map> scaled_to(const shard_map& map, std::span<const node_id> candidates,
                                                 std::size_t servers);

/// Returns the map with the hot spare `node` as a server, if fewer servers serve than `target_servers`. Returns nullopt
/// if enough servers serve, or if the node is a server.
[[nodiscard]] std::optional<shard_map> with_standby(const shard_map& map, node_id node);

/// Returns the next map on the way to the target, in which every range has its copies, every server its share, and no
/// leaving server holds a range. Adds learners (at most `at_once` in all), and removes servers that have finished
/// leaving. Returns nullopt if the target is reached or all changes are in progress.
[[nodiscard]] std::optional<shard_map> rebalanced(const shard_map& map, std::size_t at_once = 8);

/// Returns the map in which the learner of a range is its tail.
[[nodiscard]] shard_map with_learner_joined(const shard_map& map, range_id range);
/// Returns the map in which the leaver of a range is not in its chain any more.
[[nodiscard]] shard_map without_leaver(const shard_map& map, range_id range);

}}}  // namespace muster::v0::ps

#include <muster/ps/protocol/detail/shard_map-inl.hpp>
