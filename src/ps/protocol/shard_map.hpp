// Which server holds which range of the parameters: a record with a version of its own, changed by compare-and-swap
// alone.
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

/// Places are small numbers: the rank in a group that was launched together.
using node_id = std::uint32_t;
inline constexpr node_id no_node = 0xffffffff;
/// No place is as high: what a message says is not believed beyond it.
inline constexpr node_id most_nodes = 65536;

/// A server or a worker. A process that takes the place of one that died counts its incarnation up, so that what the
/// dead one said is not taken for its own.
struct member {
  node_id at = no_node;
  std::uint32_t incarnation = 0;

  friend auto operator<=>(const member&, const member&) = default;
};

/// "3", or "3.2" for a later incarnation than the first.
[[nodiscard]] inline std::string to_string(const member& node) {
  return std::to_string(node.at) + (node.incarnation > 1 ? "." + std::to_string(node.incarnation) : "");
}

/// A server that is not fenced.
struct server_entry {
  member node;
  bool leaving = false;  ///< its ranges move away, and then it may end

  friend bool operator==(const server_entry&, const server_entry&) = default;
};

/// The servers of one range. The first of the chain takes pushes, each hands every push on to the next, and it counts
/// when the last one has it, which answers pulls. So each has all that those behind it have.
struct shard_range {
  std::uint64_t epoch = 0;     ///< the version of the map in which this entry changed last
  std::vector<node_id> chain;  ///< empty: no server is left that has it
  node_id learner = no_node;   ///< is given a copy by the last of the chain, and then becomes the last
  node_id leaver = no_node;    ///< leaves the chain when the learner is in it

  [[nodiscard]] node_id head() const noexcept { return chain.empty() ? no_node : chain.front(); }
  [[nodiscard]] bool holds(node_id node) const noexcept { return std::ranges::find(chain, node) != chain.end(); }
  friend bool operator==(const shard_range&, const shard_range&) = default;
};

/// The whole record. A plain value; its size is that of the ranges.
struct shard_map {
  std::uint64_t version = 0;
  std::uint32_t replicas = 0;  ///< copies beyond the first that every range should have
  std::uint32_t wanted = 0;    ///< servers: hot spares come while fewer serve
  std::vector<server_entry> servers;
  std::vector<member> workers;  ///< those that are not fenced: their clocks count
  std::vector<shard_range> ranges;

  [[nodiscard]] const server_entry* server(node_id at) const noexcept;
  [[nodiscard]] bool has_server(const member& node) const noexcept;
  [[nodiscard]] bool has_worker(const member& node) const noexcept;
  /// The first range that no server holds any more.
  [[nodiscard]] std::optional<range_id> lost_range() const noexcept;

  [[nodiscard]] std::string encode() const;
  /// Reads any bytes whatever; nothing when they are not such a record.
  [[nodiscard]] static std::optional<shard_map> decode(std::string_view text);

  friend bool operator==(const shard_map&, const shard_map&) = default;
};

/// The first map: as many ranges for each, and the copies of one server's ranges spread over all others, so that when
/// it dies each of them takes a part. Throws configuration_error without servers or with more ranges than
/// `most_ranges`; with fewer than replicas + 1 servers, ranges have fewer copies until more come.
[[nodiscard]] shard_map first_map(std::vector<server_entry> servers, std::vector<member> workers, std::size_t ranges,
                                  std::uint32_t replicas);

/// The map without these servers. Those that are proven dead lose what they hold; one that is only suspect
/// stays as long as it is the last to hold some range. Nothing when nothing changes. Its version is one up.
[[nodiscard]] std::optional<shard_map> without_servers(const shard_map& map, std::span<const member> dead,
                                                       std::span<const member> suspects);
/// The map with one more; nothing where it has it.
[[nodiscard]] std::optional<shard_map> with_worker(const shard_map& map, const member& joins);
/// The map without a worker.
[[nodiscard]] std::optional<shard_map> without_worker(const shard_map& map, const member& node);
/// The map by which so many of these places serve, now and when some have died, those first that serve already: the
/// others of them leave, and a new one holds nothing yet. Nothing when nothing changes. Throws configuration_error
/// when they are not so many.
[[nodiscard]] std::optional<shard_map> scaled_to(const shard_map& map, std::span<const node_id> candidates,
                                                 std::size_t servers);

/// The map with one that stands by among its servers, if fewer serve than are wanted: one of them has died, or was dead
/// already when it was named. Nothing when they are enough, or when it is one of them.
[[nodiscard]] std::optional<shard_map> with_standby(const shard_map& map, node_id node);

/// The next step to where every range has its copies, every server its share, and no leaving one anything: new learners
/// (at most `at_once` in all), and servers that are done with leaving. Nothing when all is as it should be or under
/// way.
[[nodiscard]] std::optional<shard_map> rebalanced(const shard_map& map, std::size_t at_once = 8);

/// The learner of a range becomes the last of its chain.
[[nodiscard]] shard_map with_learner_joined(const shard_map& map, range_id range);
/// The one that is to leave a range has left its chain.
[[nodiscard]] shard_map without_leaver(const shard_map& map, range_id range);

}}}  // namespace muster::v0::ps
