// A server without a process around it, for tests of what it makes of single messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jobs.hpp"
#include "ps/protocol/server.hpp"
#include "ps/runtime/tables.hpp"

/// The server, and what it says.
struct bare_server : ps::server_outlet {
  struct word {
    ps::member to;
    ps::message what;
    std::string payload;
  };
  bare_server(const ps::job_options& options, ps::node_id workers, std::uint32_t replicas = 0, ps::node_id self = 0,
              std::size_t piece = ps::most_payload)
      : layout(options.tables, 1),
        values(layout, options.how, options.compress),
        map(map_of(workers, layout.ranges(), replicas)),
        core({self, 1}, {.how = options.how, .copy_piece = piece}, values, *this, map) {}
  static ps::shard_map map_of(ps::node_id workers, std::size_t ranges, std::uint32_t replicas) {
    std::vector<ps::server_entry> servers;
    std::vector<ps::member> all;
    for (ps::node_id at = 0; at <= replicas; ++at) servers.push_back({.node = {at, 1}});
    for (ps::node_id at = 0; at < workers; ++at) all.push_back({replicas + 1 + at, 1});
    return ps::first_map(servers, all, ranges, replicas);
  }
  void send(const ps::member& to, const ps::message& what) override {
    said.push_back({to, what, {reinterpret_cast<const char*>(what.payload.data()), what.payload.size()}});
  }
  void swap(std::uint64_t, const ps::shard_map& next) override { wanted = next; }
  /// What it says to one message of that place, whose clock is `clock`.
  std::vector<word> hear(ps::node_id from, const ps::message& what, std::uint64_t clock = 0) {
    std::vector<std::byte> frame(ps::frame_head_bytes + ps::encoded_bytes(what.payload.size()));
    ps::encode(ps::frame_head{.from = {from, 1}, .to = 1, .map_version = map.version, .clock = clock}, frame.data());
    ps::encode(what, frame.data() + ps::frame_head_bytes);
    said.clear();
    core.hear(frame, now);
    core.flush();
    return said;
  }

  ps::table_layout layout;
  ps::detail::tables values;
  ps::shard_map map;
  muster::clock::time_point now = muster::clock::now();
  std::vector<word> said;
  std::optional<ps::shard_map> wanted;  ///< the map that it wanted last
  ps::server core;
};

/// The receivers of what was said of that kind.
inline std::vector<ps::member> told(const std::vector<bare_server::word>& said, ps::message_kind kind) {
  std::vector<ps::member> found;
  for (const auto& one : said) {
    if (one.what.what == kind) found.push_back(one.to);
  }
  return found;
}
