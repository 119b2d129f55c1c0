#pragma once

#include <muster/ps/protocol/shard_map.hpp>

#include <map>
#include <set>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

inline constexpr std::uint64_t map_magic = 0x6d7573746572'0403;
inline constexpr std::size_t longest_chain = 64;

// Number of copies that a server holds or will hold, and number of ranges whose head it is. The order of loads
// determines which server receives the next range.
struct load {
  std::size_t copies = 0;
  std::size_t heads = 0;

  auto operator<=>(const load&) const = default;
};

inline bool is_serving(const server_entry& server) { return !server.leaving; }

inline std::map<node_id, load> loads_of(const shard_map& map) {
  std::map<node_id, load> loads;
  // If all servers are leaving, none can leave: they keep their ranges until other servers join.
  const bool all_leave = std::ranges::none_of(map.servers, is_serving);
  for (const auto& server : map.servers) {
    if (!server.leaving || all_leave) loads[server.node.place] = {};
  }
  const auto count = [&](node_id node, std::size_t load::*counter) {
    if (const auto found = loads.find(node); found != loads.end()) ++(found->second.*counter);
  };
  for (const auto& range : map.ranges) {
    for (const auto node : range.chain) {
      if (node != range.leaver) count(node, &load::copies);
    }
    if (range.learner != no_node) count(range.learner, &load::copies);
    // The successor of a leaving head becomes the head.
    const bool head_leaves = range.leaver != no_node && range.head() == range.leaver;
    const node_id head = !head_leaves ? range.head() : range.chain.size() > 1 ? range.chain[1] : range.learner;
    if (head != no_node) count(head, &load::heads);
  }
  return loads;
}

// Returns the server with the smallest load among the servers that do not hold the range.
inline node_id least_loaded(const std::map<node_id, load>& loads, const shard_range& range) {
  node_id best = no_node;
  for (const auto& [node, server_load] : loads) {
    if (!range.holds(node) && (best == no_node || server_load < loads.at(best))) best = node;
  }
  return best;
}

// Returns the changed map with new versions, or nullopt if nothing changed.
inline std::optional<shard_map> changed(const shard_map& before, shard_map next) {
  if (next == before) return std::nullopt;
  ++next.version;
  for (std::size_t id = 0; id < next.ranges.size(); ++id) {
    if (next.ranges[id] != before.ranges[id]) next.ranges[id].epoch = next.version;
  }
  return next;
}

// Versions only grow, so no earlier process at that place had this incarnation.
inline server_entry newcomer(const shard_map& map, node_id node) {
  return {{node, static_cast<std::uint32_t>(map.version + 1)}};
}

}  // namespace detail

inline const server_entry* shard_map::server(node_id place) const noexcept {
  const auto found = std::ranges::find_if(servers, [&](const auto& entry) { return entry.node.place == place; });
  return found == servers.end() ? nullptr : &*found;
}

inline bool shard_map::has_server(const member& node) const noexcept {
  const auto* const found = server(node.place);
  return found != nullptr && found->node == node;
}

inline bool shard_map::has_worker(const member& node) const noexcept {
  return std::ranges::find(workers, node) != workers.end();
}

inline std::optional<range_id> shard_map::lost_range() const noexcept {
  const auto found = std::ranges::find_if(ranges, [](const auto& range) { return range.chain.empty(); });
  return found == ranges.end() ? std::nullopt : std::optional(static_cast<range_id>(found - ranges.begin()));
}

inline std::string shard_map::encode() const {
  muster::detail::wire_writer writer;
  writer.add(detail::map_magic, version, replicas, target_servers, std::uint64_t{servers.size()});
  for (const auto& server : servers) writer.add(server.node, std::uint8_t{server.leaving});
  writer.add_all<member>(workers);
  writer.add(std::uint64_t{ranges.size()});
  for (const auto& entry : ranges) {
    writer.add(entry.epoch, entry.learner, entry.leaver);
    writer.add_all<node_id>(entry.chain);
  }
  return writer.take();
}

inline std::optional<shard_map> shard_map::decode(std::string_view text) {
  muster::detail::wire_reader reader(text);
  shard_map read;
  const bool has_magic = reader.number<std::uint64_t>() == detail::map_magic;
  reader.read(read.version, read.replicas, read.target_servers);
  read.servers.resize(has_magic ? reader.count(9, most_nodes) : 0);
  for (auto& server : read.servers) {
    server.node = reader.number<member>();
    const auto leaving = reader.number<std::uint8_t>();
    server.leaving = leaving == 1;
    if (server.node.place >= most_nodes || leaving > 1) reader.fail();
  }
  if (has_magic) read.workers = reader.all<member>(most_nodes);
  for (const auto& worker : read.workers) {
    if (worker.place >= most_nodes) reader.fail();
  }
  read.ranges.resize(has_magic ? reader.count(24, most_ranges) : 0);
  for (auto& range : read.ranges) {
    reader.read(range.epoch, range.learner, range.leaver);
    range.chain = reader.all<node_id>(detail::longest_chain);
    for (const auto node : range.chain) {
      if (read.server(node) == nullptr) reader.fail();
    }
    if (range.learner != no_node && read.server(range.learner) == nullptr) reader.fail();
    if (range.leaver != no_node && !range.holds(range.leaver)) reader.fail();
  }
  if (!has_magic || !reader.is_complete()) return std::nullopt;
  return read;
}

inline shard_map first_map(std::vector<server_entry> servers, std::vector<member> workers, std::size_t ranges,
                           std::uint32_t replicas) {
  if (servers.empty()) {
    throw configuration_error("a parameter server needs a server (none was named); start one at least, --servers 1");
  }
  if (ranges > most_ranges) {
    throw configuration_error("the tables have " + std::to_string(ranges) + " ranges (a map holds " +
                              std::to_string(most_ranges) + "); make the ranges larger");
  }
  shard_map map;
  map.version = 1;
  map.replicas = replicas;
  map.target_servers = static_cast<std::uint32_t>(servers.size());
  map.servers = std::move(servers);
  map.workers = std::move(workers);
  map.ranges.resize(ranges);
  // Servers become heads in turn. The candidates for the copies of a server's next range start one server further.
  // Among the candidates the server with the fewest ranges is chosen.
  const std::size_t count = map.servers.size();
  const auto place = [&](std::size_t index) { return map.servers[index % count].node.place; };
  for (std::size_t id = 0; id < ranges; ++id) map.ranges[id] = {.epoch = map.version, .chain = {place(id)}};
  auto loads = detail::loads_of(map);
  for (std::size_t copy = 1; copy <= replicas && copy < count; ++copy) {
    for (std::size_t id = 0; id < ranges; ++id) {
      auto& range = map.ranges[id];
      node_id best = no_node;
      for (std::size_t step = 0; step + 1 < count; ++step) {
        const node_id node = place(id + 1 + (id / count + copy + step) % (count - 1));
        if (!range.holds(node) && (best == no_node || loads[node].copies < loads[best].copies)) best = node;
      }
      range.chain.push_back(best);
      ++loads[best].copies;
    }
  }
  return map;
}

inline std::optional<shard_map> without_servers(const shard_map& map, std::span<const member> dead,
                                                std::span<const member> suspects) {
  shard_map next = map;
  std::set<node_id> removed;
  for (const auto& server : dead) {
    if (next.has_server(server)) removed.insert(server.place);
  }
  // A suspect that is the last holder of a range is not removed.
  for (const auto& suspect : suspects) {
    if (!next.has_server(suspect) || removed.contains(suspect.place)) continue;
    const bool last = std::ranges::any_of(next.ranges, [&](const shard_range& range) {
      return range.holds(suspect.place) && std::ranges::all_of(range.chain, [&](node_id holder) {
               return holder == suspect.place || removed.contains(holder);
             });
    });
    if (!last) removed.insert(suspect.place);
  }
  std::erase_if(next.servers, [&](const server_entry& server) { return removed.contains(server.node.place); });
  for (auto& range : next.ranges) {
    const bool shrank = std::erase_if(range.chain, [&](node_id node) { return removed.contains(node); }) > 0;
    if (range.learner != no_node && (removed.contains(range.learner) || range.chain.empty())) {
      range.learner = no_node;
      range.leaver = no_node;  // no server replaces the leaver
    }
    if (range.leaver != no_node && (removed.contains(range.leaver) || (shrank && range.chain.size() == 1)))
      range.leaver = no_node;
  }
  return detail::changed(map, std::move(next));
}

inline std::optional<shard_map> without_worker(const shard_map& map, const member& node) {
  shard_map next = map;
  std::erase(next.workers, node);
  return detail::changed(map, std::move(next));
}

inline std::optional<shard_map> with_worker(const shard_map& map, const member& joins) {
  shard_map next = map;
  if (!map.has_worker(joins)) next.workers.push_back(joins);
  return detail::changed(map, std::move(next));
}

inline std::optional<shard_map> scaled_to(const shard_map& map, std::span<const node_id> candidates,
                                          std::size_t servers) {
  if (servers < 1 || servers > candidates.size()) {
    throw configuration_error(
        "there cannot be " + std::to_string(servers) + " servers (the job has " + std::to_string(candidates.size()) +
        " that live, and one at least serves); choose from 1 to " + std::to_string(candidates.size()));
  }
  std::vector<node_id> order(candidates.begin(), candidates.end());
  std::stable_partition(order.begin(), order.end(), [&](node_id node) {
    const auto* const entry = map.server(node);
    return entry != nullptr && detail::is_serving(*entry);
  });
  shard_map next = map;
  next.target_servers = static_cast<std::uint32_t>(servers);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool serves = i < servers;
    const auto own =
        std::ranges::find_if(next.servers, [&](const server_entry& server) { return server.node.place == order[i]; });
    if (own != next.servers.end()) {
      own->leaving = !serves;
    } else if (serves) {
      next.servers.push_back(detail::newcomer(map, order[i]));
    }
  }
  return detail::changed(map, std::move(next));
}

inline std::optional<shard_map> with_standby(const shard_map& map, node_id node) {
  const auto serving = std::ranges::count_if(map.servers, detail::is_serving);
  if (map.server(node) != nullptr || std::cmp_greater_equal(serving, map.target_servers)) return std::nullopt;
  shard_map next = map;
  next.servers.push_back(detail::newcomer(map, node));
  return detail::changed(map, std::move(next));
}

inline std::optional<shard_map> rebalanced(const shard_map& map, std::size_t at_once) {
  shard_map next = map;
  auto loads = detail::loads_of(next);
  auto moving = static_cast<std::size_t>(
      std::ranges::count_if(next.ranges, [](const shard_range& range) { return range.learner != no_node; }));
  const auto target_copies = std::min<std::size_t>(next.replicas + 1, loads.size());
  const auto teach = [&](shard_range& range, node_id learner, node_id leaver) {
    range.learner = learner;
    range.leaver = leaver;
    ++moving;
    loads = detail::loads_of(next);
  };
  // First: ranges with too few copies, and ranges of leaving servers.
  for (auto& range : next.ranges) {
    if (moving >= at_once) break;
    if (range.chain.empty() || range.learner != no_node || range.leaver != no_node) continue;
    const auto stays = static_cast<std::size_t>(
        std::ranges::count_if(range.chain, [&](node_id node) { return loads.contains(node); }));
    const auto leaver = std::ranges::find_if(range.chain, [&](node_id node) { return !loads.contains(node); });
    const auto learner = detail::least_loaded(loads, range);
    if (stays < target_copies && learner != no_node) {
      teach(range, learner, leaver == range.chain.end() ? no_node : *leaver);
    } else if (range.chain.size() > 1 && (leaver != range.chain.end() || stays > target_copies)) {
      range.leaver = leaver != range.chain.end() ? *leaver : range.chain.back();  // the other copies are sufficient
    }
  }
  // Then: ranges move from the server with the largest load to the server with the smallest, while this balances the
  // loads.
  while (moving < at_once && loads.size() > 1) {
    const auto [least, most] =
        std::ranges::minmax_element(loads, {}, [](const auto& entry) { return entry.second.copies; });
    const auto [low, empty] = *least;
    const auto [high, full] = *most;
    if (empty.copies + 2 > full.copies) break;
    const bool heads_first = full.heads > empty.heads;
    shard_range* best = nullptr;
    for (auto& range : next.ranges) {
      if (range.learner != no_node || range.leaver != no_node || !range.holds(high) || range.holds(low)) continue;
      if (best == nullptr || ((range.head() == high) == heads_first && (best->head() == high) != heads_first))
        best = &range;
    }
    if (best == nullptr) break;
    teach(*best, low, high);
  }
  const auto holds_nothing = [&](node_id node) {
    return std::ranges::none_of(next.ranges,
                                [&](const shard_range& range) { return range.holds(node) || range.learner == node; });
  };
  std::erase_if(next.servers,
                [&](const server_entry& server) { return server.leaving && holds_nothing(server.node.place); });
  return detail::changed(map, std::move(next));
}

inline shard_map with_learner_joined(const shard_map& map, range_id range) {
  shard_map next = map;
  auto& entry = next.ranges.at(range);
  entry.chain.push_back(std::exchange(entry.learner, no_node));
  return detail::changed(map, std::move(next)).value();
}

inline shard_map without_leaver(const shard_map& map, range_id range) {
  shard_map next = map;
  auto& entry = next.ranges.at(range);
  std::erase(entry.chain, std::exchange(entry.leaver, no_node));
  return detail::changed(map, std::move(next)).value();
}

}}}  // namespace muster::v0::ps
