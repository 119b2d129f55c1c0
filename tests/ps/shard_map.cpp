// The parameter server's maps: the distribution of ranges, moves, and the bytes that form a map.
#include <muster/ps/protocol/shard_map.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/ps/table.hpp>

#include "catch.hpp"

namespace ps = muster::ps;

namespace {

std::vector<ps::server_entry> servers_of(std::size_t count) {
  std::vector<ps::server_entry> servers;
  for (ps::node_id at = 0; at < count; ++at) servers.push_back({{at, 1}});
  return servers;
}

/// Returns the map with one more server, which is `joining`.
ps::shard_map with_another(const ps::shard_map& map, ps::node_id joining) {
  std::vector<ps::node_id> candidates = {joining};
  std::size_t serving = 0;
  for (const auto& server : map.servers) {
    candidates.push_back(server.node.place);
    serving += server.leaving ? 0 : 1;
  }
  return *ps::scaled_to(map, candidates, serving + 1);
}

std::map<ps::node_id, std::size_t> heads_of(const ps::shard_map& map) {
  std::map<ps::node_id, std::size_t> heads;
  for (const auto& range : map.ranges) ++heads[range.head()];
  return heads;
}

/// Completes all changes in progress, as servers would, until none is left.
ps::shard_map settled(ps::shard_map map, std::size_t at_once) {
  for (int round = 0; round < 10000; ++round) {
    bool moved = false;
    for (ps::range_id id = 0; id < map.ranges.size(); ++id) {
      if (map.ranges[id].learner != ps::no_node) {
        map = ps::with_learner_joined(map, id);
        moved = true;
      } else if (map.ranges[id].leaver != ps::no_node) {
        map = ps::without_leaver(map, id);
        moved = true;
      }
    }
    if (auto next = ps::rebalanced(map, at_once)) {
      map = std::move(*next);
    } else if (!moved) {
      return map;
    }
  }
  FAIL("it never comes to rest");
  return map;
}

}  // namespace

TEST_CASE("each server gets as many ranges") {
  const auto map = ps::first_map(servers_of(3), {}, 300, 0);
  CHECK(heads_of(map) == std::map<ps::node_id, std::size_t>{{0, 100}, {1, 100}, {2, 100}});
}

// A range is not so small that its message is inefficient, unless servers would have no range, and not larger than a
// message.
TEST_CASE("a dense table is cut into as many ranges for each server") {
  muster::random_stream draw(20261128);
  for (int turn = 0; turn < 2000; ++turn) {
    const std::size_t servers = 1 + draw.below(12);
    const std::size_t size = 1 + draw.below(std::uint64_t{1} << (1 + draw.below(28)));
    const ps::table_layout layout({{.name = "w", .size = size}}, servers);
    INFO(size << " elements on " << servers << " servers in " << layout.ranges() << " ranges");
    std::size_t end = 0;
    for (ps::range_id id = 0; id < layout.ranges(); ++id) {
      REQUIRE(layout.range(id).begin == end);
      REQUIRE(layout.range(id).size <= ps::table_layout::largest_range);
      end += layout.range(id).size;
    }
    REQUIRE(end == size);
    const std::size_t first = layout.range(0).size;  // the last range may be shorter
    if (size >= 1024 * servers) CHECK(first * servers <= size + 16 * servers);
    if (size >= 1024 * servers && size < 128 * 1024 * servers) CHECK(layout.ranges() <= servers);
    if (size >= 1024 * 1024 * servers) CHECK(layout.ranges() >= 8 * (servers - 1));
    if (layout.ranges() > servers) CHECK(first >= 64 * 1024);
  }
}

TEST_CASE("the copies of one server's ranges are spread over all others") {
  const auto map = ps::first_map(servers_of(4), {}, 120, 1);
  std::map<std::pair<ps::node_id, ps::node_id>, std::size_t> shared;
  for (const auto& range : map.ranges) {
    REQUIRE(range.chain.size() == 2);
    REQUIRE(range.chain[0] != range.chain[1]);
    ++shared[{range.chain[0], range.chain[1]}];
  }
  CHECK(shared.size() == 12);
  for (const auto& [node, count] : shared) CHECK(count == 10);
  const ps::member dead[] = {{2, 1}};
  const auto after = ps::without_servers(map, dead, {});
  REQUIRE(after);
  CHECK(heads_of(*after) == std::map<ps::node_id, std::size_t>{{0, 40}, {1, 40}, {3, 40}});
}

TEST_CASE("the last holder of a range is given up for a proof, not for a suspicion") {
  const auto map = ps::first_map(servers_of(2), {}, 4, 0);
  const ps::member suspects[] = {{1, 1}};
  CHECK_FALSE(ps::without_servers(map, {}, suspects));
  const auto after = ps::without_servers(map, suspects, {});
  REQUIRE(after);
  CHECK(std::count_if(after->ranges.begin(), after->ranges.end(), [](const auto& r) { return r.chain.empty(); }) == 2);
}

// Before the fix the leaver stayed as an excess copy, and the range moved again.
TEST_CASE("the death of a server changes nothing about ranges that move between others") {
  auto map = ps::first_map(servers_of(3), {}, 3, 0);
  auto& moves =
      *std::find_if(map.ranges.begin(), map.ranges.end(), [](const auto& range) { return range.head() == 0; });
  moves.learner = 1;
  moves.leaver = 0;
  const ps::member dead[] = {{2, 1}};
  const auto after = ps::without_servers(map, dead, {});
  REQUIRE(after);
  CHECK(after->ranges[static_cast<std::size_t>(&moves - map.ranges.data())] == moves);
}

TEST_CASE("a server that was to leave a range stays when it is the last that holds it") {
  auto map = ps::first_map(servers_of(3), {}, 1, 1);
  map.ranges[0].chain = {0, 1};
  map.ranges[0].leaver = 0;
  const ps::member dead[] = {{1, 1}};
  const auto after = ps::without_servers(map, dead, {});
  REQUIRE(after);
  CHECK(after->ranges[0].chain == std::vector<ps::node_id>{0});
  CHECK(after->ranges[0].leaver == ps::no_node);
}

TEST_CASE("whatever servers come and go, every range has its copies in the end and every server its share") {
  const std::uint64_t seed = 7;
  muster::random_stream draw(seed);
  for (int trial = 0; trial < 200; ++trial) {
    INFO("seed " << seed << ", trial " << trial);
    const auto replicas = static_cast<std::uint32_t>(draw.below(3));
    const std::size_t ranges = 1 + draw.below(60);
    auto map = ps::first_map(servers_of(2 + draw.below(4)), {}, ranges, replicas);
    ps::node_id next = 10;
    for (int change = 0; change < 4; ++change) {
      if (draw.below(2) == 0) {
        map = with_another(map, next++);
      } else if (std::count_if(map.servers.begin(), map.servers.end(),
                               [](const auto& entry) { return !entry.leaving; }) > replicas + 1) {
        auto& server = map.servers[draw.below(map.servers.size())];
        if (draw.below(2) == 0) {
          server.leaving = true;
          ++map.version;
        } else {
          const ps::member suspects[] = {server.node};
          map = ps::without_servers(map, {}, suspects).value_or(map);
        }
      }
      if (draw.below(2) == 0) continue;  // the next change starts before this change is complete
      map = settled(std::move(map), 1 + draw.below(9));
    }
    map = settled(std::move(map), 8);
    const auto copies = std::min<std::size_t>(replicas + 1, map.servers.size());
    std::map<ps::node_id, std::size_t> held;
    for (const auto& range : map.ranges) {
      REQUIRE(range.chain.size() == copies);
      REQUIRE(std::set<ps::node_id>(range.chain.begin(), range.chain.end()).size() == copies);
      for (const auto node : range.chain) ++held[node];
    }
    for (const auto& server : map.servers) {
      CHECK_FALSE(server.leaving);
      const double share = static_cast<double>(ranges * copies) / static_cast<double>(map.servers.size());
      CHECK(static_cast<double>(held[server.node.place]) >= share - 2);
      CHECK(static_cast<double>(held[server.node.place]) <= share + 2);
    }
  }
}

TEST_CASE(
    "as many servers serve as are wanted, nothing is lost on the way, and no process is taken for its former self") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    muster::random_stream draw(seed, 5);
    const std::size_t places = 2 + draw.below(6);
    const std::size_t at_first = 1 + draw.below(places);
    const auto replicas = static_cast<std::uint32_t>(draw.below(3));
    std::vector<ps::node_id> candidates(places);
    std::iota(candidates.begin(), candidates.end(), ps::node_id{0});
    auto map = ps::first_map(servers_of(at_first), {}, 8 * places, replicas);
    INFO("seed " << seed << ", " << at_first << " of " << places << " servers, " << replicas << " replicas");
    std::set<ps::member> incarnations;
    for (const auto& server : map.servers) incarnations.insert(server.node);
    for (int i = 0; i < 12; ++i) {
      const auto target = 1 + draw.below(places);
      const auto before = map;
      const auto next = ps::scaled_to(map, candidates, target);
      const auto staying = static_cast<std::size_t>(std::count_if(
          before.servers.begin(), before.servers.end(), [](const ps::server_entry& entry) { return !entry.leaving; }));
      REQUIRE(next.has_value() == (staying != target));
      if (next) map = *next;
      for (const auto& server : map.servers) {
        if (before.has_server(server.node)) continue;
        REQUIRE(incarnations.insert(server.node).second);  // a new incarnation
      }
      if (draw.below(3) == 0) {  // the next request arrives before this request is complete
        if (auto some = ps::rebalanced(map, 3)) map = std::move(*some);
        continue;
      }
      map = settled(std::move(map), 1 + draw.below(9));
      REQUIRE(map.servers.size() == target);
      for (const auto& range : map.ranges) REQUIRE(range.chain.size() == std::min<std::size_t>(replicas + 1, target));
    }
    CHECK_THROWS_AS(ps::scaled_to(map, candidates, places + 1), muster::configuration_error);
    CHECK_THROWS_AS(ps::scaled_to(map, candidates, 0), muster::configuration_error);
  }
}

TEST_CASE("standby servers serve while there are fewer servers than wanted") {
  auto map = ps::first_map(servers_of(2), {}, 16, 1);
  CHECK(map.target_servers == 2);
  CHECK_FALSE(ps::with_standby(map, 2));
  const ps::member dead[] = {{1, 1}};
  map = *ps::without_servers(map, dead, {});
  CHECK_FALSE(ps::with_standby(map, 0));  // a server
  auto next = *ps::with_standby(map, 2);
  CHECK(next.version == map.version + 1);
  CHECK(next.has_server({2, static_cast<std::uint32_t>(next.version)}));
  CHECK_FALSE(ps::with_standby(next, 3));
  const ps::node_id candidates[] = {0, 1, 2, 3};
  map = *ps::scaled_to(next, candidates, 3);  // adds a server that may be dead, which is unknown
  const ps::member added[] = {map.servers.back().node};
  CHECK(added[0].place == 1);
  map = *ps::without_servers(map, added, {});
  CHECK(ps::with_standby(map, 3));
  map = *ps::scaled_to(map, candidates, 1);
  CHECK_FALSE(ps::with_standby(map, 3));
  map = *ps::scaled_to(map, candidates, 2);  // a server that is still leaving stays
  CHECK_FALSE(ps::with_standby(map, 3));
}

TEST_CASE("a map comes back as it was, and garbage does not pass for one") {
  auto map = ps::first_map(servers_of(3), {{5, 1}, {6, 2}}, 17, 2);
  map = *ps::rebalanced(with_another(map, 9), 3);
  const auto text = map.encode();
  CHECK(ps::shard_map::decode(text) == map);
  for (std::size_t cut = 0; cut < text.size(); ++cut) CHECK_FALSE(ps::shard_map::decode(text.substr(0, cut)));
  muster::random_stream draw(3);
  for (int trial = 0; trial < 3000; ++trial) {
    auto broken = text;
    broken[draw.below(broken.size())] ^= static_cast<char>(1 + draw.below(255));
    if (const auto read = ps::shard_map::decode(broken)) CHECK(read->encode() == broken);
  }
}
