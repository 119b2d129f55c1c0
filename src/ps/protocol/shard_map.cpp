#include "shard_map.hpp"

#include <map>
#include <set>
#include <utility>

#include <muster/core/error.hpp>

#include "../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace ps {
namespace {

constexpr std::uint64_t map_magic = 0x6d7573746572'0403;
constexpr std::size_t longest_chain = 64;

// How many ranges each server holds a copy of, or is about to, and how many it is the head of; in the order in which
// servers get one more.
struct load {
  std::size_t copies = 0;
  std::size_t heads = 0;

  auto operator<=>(const load&) const = default;
};

bool is_serving(const server_entry& one) { return !one.leaving; }

std::map<node_id, load> loads_of(const shard_map& map) {
  std::map<node_id, load> loads;
  // Where all want to leave none can: they hold what there is until others come.
  const bool all_leave = std::ranges::none_of(map.servers, is_serving);
  for (const auto& one : map.servers) {
    if (!one.leaving || all_leave) loads[one.node.at] = {};
  }
  const auto count = [&](node_id node, std::size_t load::*what) {
    if (const auto found = loads.find(node); found != loads.end()) ++(found->second.*what);
  };
  for (const auto& range : map.ranges) {
    for (const auto node : range.chain) {
      if (node != range.leaver) count(node, &load::copies);
    }
    if (range.learner != no_node) count(range.learner, &load::copies);
    // The one behind a head that leaves takes its place.
    const bool head_leaves = range.leaver != no_node && range.head() == range.leaver;
    const node_id head = !head_leaves ? range.head() : range.chain.size() > 1 ? range.chain[1] : range.learner;
    if (head != no_node) count(head, &load::heads);
  }
  return loads;
}

// The server with the least among those that do not hold the range.
node_id least_loaded(const std::map<node_id, load>& loads, const shard_range& range) {
  node_id best = no_node;
  for (const auto& [node, its] : loads) {
    if (!range.holds(node) && (best == no_node || its < loads.at(best))) best = node;
  }
  return best;
}

// What a change made of a map, with versions that say so; nothing when it is as it was.
std::optional<shard_map> changed(const shard_map& before, shard_map next) {
  if (next == before) return std::nullopt;
  ++next.version;
  for (std::size_t id = 0; id < next.ranges.size(); ++id) {
    if (next.ranges[id] != before.ranges[id]) next.ranges[id].epoch = next.version;
  }
  return next;
}

// Versions only grow: no earlier process of that place has had this incarnation.
server_entry newcomer(const shard_map& map, node_id at) { return {{at, static_cast<std::uint32_t>(map.version + 1)}}; }

}  // namespace

const server_entry* shard_map::server(node_id at) const noexcept {
  const auto found = std::ranges::find_if(servers, [&](const auto& one) { return one.node.at == at; });
  return found == servers.end() ? nullptr : &*found;
}

bool shard_map::has_server(const member& node) const noexcept {
  const auto* const found = server(node.at);
  return found != nullptr && found->node == node;
}

bool shard_map::has_worker(const member& node) const noexcept {
  return std::ranges::find(workers, node) != workers.end();
}

std::optional<range_id> shard_map::lost_range() const noexcept {
  const auto found = std::ranges::find_if(ranges, [](const auto& range) { return range.chain.empty(); });
  return found == ranges.end() ? std::nullopt : std::optional(static_cast<range_id>(found - ranges.begin()));
}

std::string shard_map::encode() const {
  muster::detail::wire_writer out;
  out.add(map_magic, version, replicas, wanted, std::uint64_t{servers.size()});
  for (const auto& one : servers) out.add(one.node, std::uint8_t{one.leaving});
  out.add_all<member>(workers);
  out.add(std::uint64_t{ranges.size()});
  for (const auto& one : ranges) {
    out.add(one.epoch, one.learner, one.leaver);
    out.add_all<node_id>(one.chain);
  }
  return out.take();
}

std::optional<shard_map> shard_map::decode(std::string_view text) {
  muster::detail::wire_reader in(text);
  shard_map read;
  const bool known = in.number<std::uint64_t>() == map_magic;
  in.read(read.version, read.replicas, read.wanted);
  read.servers.resize(known ? in.count(9, most_nodes) : 0);
  for (auto& one : read.servers) {
    one.node = in.number<member>();
    const auto leaving = in.number<std::uint8_t>();
    one.leaving = leaving == 1;
    if (one.node.at >= most_nodes || leaving > 1) in.fail();
  }
  if (known) read.workers = in.all<member>(most_nodes);
  for (const auto& one : read.workers) {
    if (one.at >= most_nodes) in.fail();
  }
  read.ranges.resize(known ? in.count(24, most_ranges) : 0);
  for (auto& one : read.ranges) {
    in.read(one.epoch, one.learner, one.leaver);
    one.chain = in.all<node_id>(longest_chain);
    for (const auto node : one.chain) {
      if (read.server(node) == nullptr) in.fail();
    }
    if (one.learner != no_node && read.server(one.learner) == nullptr) in.fail();
    if (one.leaver != no_node && !one.holds(one.leaver)) in.fail();
  }
  if (!known || !in.whole()) return std::nullopt;
  return read;
}

shard_map first_map(std::vector<server_entry> servers, std::vector<member> workers, std::size_t ranges,
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
  map.wanted = static_cast<std::uint32_t>(servers.size());
  map.servers = std::move(servers);
  map.workers = std::move(workers);
  map.ranges.resize(ranges);
  // Heads in turn. Of the next range of each, the copies begin one server further: among those with the fewest ranges.
  const std::size_t count = map.servers.size();
  const auto place = [&](std::size_t index) { return map.servers[index % count].node.at; };
  for (std::size_t id = 0; id < ranges; ++id) map.ranges[id] = {.epoch = map.version, .chain = {place(id)}};
  auto loads = loads_of(map);
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

std::optional<shard_map> without_servers(const shard_map& map, std::span<const member> dead,
                                         std::span<const member> suspects) {
  shard_map next = map;
  std::set<node_id> out;
  for (const auto& one : dead) {
    if (next.has_server(one)) out.insert(one.at);
  }
  // The last holder of a range is not given up for a suspicion.
  for (const auto& one : suspects) {
    if (!next.has_server(one) || out.contains(one.at)) continue;
    const bool last = std::ranges::any_of(next.ranges, [&](const shard_range& range) {
      return range.holds(one.at) &&
             std::ranges::all_of(range.chain, [&](node_id other) { return other == one.at || out.contains(other); });
    });
    if (!last) out.insert(one.at);
  }
  std::erase_if(next.servers, [&](const server_entry& one) { return out.contains(one.node.at); });
  for (auto& range : next.ranges) {
    const bool shrank = std::erase_if(range.chain, [&](node_id node) { return out.contains(node); }) > 0;
    if (range.learner != no_node && (out.contains(range.learner) || range.chain.empty())) {
      range.learner = no_node;
      range.leaver = no_node;  // no server takes its place
    }
    if (range.leaver != no_node && (out.contains(range.leaver) || (shrank && range.chain.size() == 1)))
      range.leaver = no_node;
  }
  return changed(map, std::move(next));
}

std::optional<shard_map> without_worker(const shard_map& map, const member& node) {
  shard_map next = map;
  std::erase(next.workers, node);
  return changed(map, std::move(next));
}

std::optional<shard_map> with_worker(const shard_map& map, const member& joins) {
  shard_map next = map;
  if (!map.has_worker(joins)) next.workers.push_back(joins);
  return changed(map, std::move(next));
}

std::optional<shard_map> scaled_to(const shard_map& map, std::span<const node_id> candidates, std::size_t servers) {
  if (servers < 1 || servers > candidates.size()) {
    throw configuration_error(
        "there cannot be " + std::to_string(servers) + " servers (the job has " + std::to_string(candidates.size()) +
        " that live, and one at least serves); choose from 1 to " + std::to_string(candidates.size()));
  }
  std::vector<node_id> order(candidates.begin(), candidates.end());
  std::stable_partition(order.begin(), order.end(), [&](node_id node) {
    const auto* const entry = map.server(node);
    return entry != nullptr && is_serving(*entry);
  });
  shard_map next = map;
  next.wanted = static_cast<std::uint32_t>(servers);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool wanted = i < servers;
    const auto own =
        std::ranges::find_if(next.servers, [&](const server_entry& one) { return one.node.at == order[i]; });
    if (own != next.servers.end()) {
      own->leaving = !wanted;
    } else if (wanted) {
      next.servers.push_back(newcomer(map, order[i]));
    }
  }
  return changed(map, std::move(next));
}

std::optional<shard_map> with_standby(const shard_map& map, node_id node) {
  const auto serving = std::ranges::count_if(map.servers, is_serving);
  if (map.server(node) != nullptr || std::cmp_greater_equal(serving, map.wanted)) return std::nullopt;
  shard_map next = map;
  next.servers.push_back(newcomer(map, node));
  return changed(map, std::move(next));
}

std::optional<shard_map> rebalanced(const shard_map& map, std::size_t at_once) {
  shard_map next = map;
  auto loads = loads_of(next);
  auto moving = static_cast<std::size_t>(
      std::ranges::count_if(next.ranges, [](const shard_range& range) { return range.learner != no_node; }));
  const auto copies_wanted = std::min<std::size_t>(next.replicas + 1, loads.size());
  const auto teach = [&](shard_range& range, node_id learner, node_id leaver) {
    range.learner = learner;
    range.leaver = leaver;
    ++moving;
    loads = loads_of(next);
  };
  // First what has too few copies, and what a leaving server holds.
  for (auto& range : next.ranges) {
    if (moving >= at_once) break;
    if (range.chain.empty() || range.learner != no_node || range.leaver != no_node) continue;
    const auto stays = static_cast<std::size_t>(
        std::ranges::count_if(range.chain, [&](node_id node) { return loads.contains(node); }));
    const auto goes = std::ranges::find_if(range.chain, [&](node_id node) { return !loads.contains(node); });
    const auto to = least_loaded(loads, range);
    if (stays < copies_wanted && to != no_node) {
      teach(range, to, goes == range.chain.end() ? no_node : *goes);
    } else if (range.chain.size() > 1 && (goes != range.chain.end() || stays > copies_wanted)) {
      range.leaver = goes != range.chain.end() ? *goes : range.chain.back();  // the others are copies enough
    }
  }
  // Then from the fullest server to the emptiest, while that makes them more alike.
  while (moving < at_once && loads.size() > 1) {
    const auto [least, most] =
        std::ranges::minmax_element(loads, {}, [](const auto& one) { return one.second.copies; });
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
  std::erase_if(next.servers, [&](const server_entry& one) { return one.leaving && holds_nothing(one.node.at); });
  return changed(map, std::move(next));
}

shard_map with_learner_joined(const shard_map& map, range_id range) {
  shard_map next = map;
  auto& one = next.ranges.at(range);
  one.chain.push_back(std::exchange(one.learner, no_node));
  return changed(map, std::move(next)).value();
}

shard_map without_leaver(const shard_map& map, range_id range) {
  shard_map next = map;
  auto& one = next.ranges.at(range);
  std::erase(one.chain, std::exchange(one.leaver, no_node));
  return changed(map, std::move(next)).value();
}

}}}  // namespace muster::v0::ps
