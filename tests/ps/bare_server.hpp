// A server without a process around it, for tests with single messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <muster/ps/protocol/server_protocol.hpp>
#include <muster/ps/runtime/tables.hpp>
#include "jobs.hpp"

/// The server, and the messages that it sends.
struct bare_server : ps::server_output {
  struct sent_message {
    ps::member receiver;
    ps::message msg;
    std::string payload;
  };
  bare_server(const ps::job_options& options, ps::node_id workers, std::uint32_t replicas = 0, ps::node_id self = 0,
              std::size_t piece = ps::most_payload)
      : layout(options.tables, 1),
        values(layout, options.consistency_model, options.compress),
        map(map_of(workers, layout.ranges(), replicas)),
        core({self, 1}, {.model = options.consistency_model, .copy_piece = piece}, values, *this, map) {}
  static ps::shard_map map_of(ps::node_id workers, std::size_t ranges, std::uint32_t replicas) {
    std::vector<ps::server_entry> servers;
    std::vector<ps::member> all;
    for (ps::node_id at = 0; at <= replicas; ++at) servers.push_back({.node = {at, 1}});
    for (ps::node_id at = 0; at < workers; ++at) all.push_back({replicas + 1 + at, 1});
    return ps::first_map(servers, all, ranges, replicas);
  }
  void send(const ps::member& receiver, const ps::message& msg) override {
    sent.push_back({receiver, msg, {reinterpret_cast<const char*>(msg.payload.data()), msg.payload.size()}});
  }
  void swap(std::uint64_t, const ps::shard_map& next) override { proposed_map = next; }
  /// Delivers a message from that place, whose clock is `clock`. Returns the messages that the server sends in
  /// reaction.
  std::vector<sent_message> deliver(ps::node_id sender, const ps::message& msg, std::uint64_t clock = 0) {
    std::vector<std::byte> frame(ps::frame_head_bytes + ps::encoded_bytes(msg.payload.size()));
    ps::encode(
        ps::frame_head{.sender = {sender, 1}, .receiver_incarnation = 1, .map_version = map.version, .clock = clock},
        frame.data());
    ps::encode(msg, frame.data() + ps::frame_head_bytes);
    sent.clear();
    core.on_frame(frame, now);
    core.send_due_replies();
    return sent;
  }

  ps::table_layout layout;
  ps::detail::tables values;
  ps::shard_map map;
  muster::clock::time_point now = muster::clock::now();
  std::vector<sent_message> sent;
  std::optional<ps::shard_map> proposed_map;  ///< the map that the server proposed last
  ps::server core;
};

/// Returns the receivers of sent messages with that kind.
inline std::vector<ps::member> receivers_of(const std::vector<bare_server::sent_message>& sent, ps::message_kind kind) {
  std::vector<ps::member> found;
  for (const auto& each : sent) {
    if (each.msg.kind == kind) found.push_back(each.receiver);
  }
  return found;
}
