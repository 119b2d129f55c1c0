// The network and the store of the simulation: messages that are lost, duplicated or delayed, and the map, which
// servers change.
#pragma once

#include "simulation.hpp"

namespace simulation {

inline void run::send(ps::member sender_node, std::uint64_t map_version, std::uint64_t clock, ps::member node,
                      const ps::message& msg) {
  const ps::node_id place = node.place;
  const auto sender = processes_.find(sender_node);
  if (place >= 64 || (sender != processes_.end() && sender->second->is_cut_from(place))) return;
  auto* const receiver = find_at(place);
  if (receiver == nullptr || (chance(world_.loss) && now_ < time{} + whole_again)) return;
  auto frame = std::make_shared<std::vector<std::byte>>(ps::frame_head_bytes + ps::encoded_bytes(msg.payload.size()));
  ps::encode(
      ps::frame_head{
          .sender = sender_node, .receiver_incarnation = node.incarnation, .map_version = map_version, .clock = clock},
      frame->data());
  ps::encode(msg, frame->data() + ps::frame_head_bytes);
  // Some payloads are sent separately, as large payloads are.
  const bool is_separate = !msg.payload.empty() && msg.number % 3 == 0;
  constexpr auto heads = ps::frame_head_bytes + ps::message_head_bytes;
  const auto links = sender == processes_.end() ? links_ : sender->second->links;
  const std::function<void(process&)> arrive = [this, frame, is_separate,
                                                bytes = msg.payload.size()](process& target_process) {
    if (chance(0.1)) look_for_map(target_process.node);  // the sender's map may have been in the store for long
    const std::span<const std::byte> all(*frame);
    is_separate ? target_process.on_frame(all.first(heads), all.subspan(heads, bytes))
                : target_process.on_frame(all, {});
  };
  const int copies = chance(world_.duplicates) ? 2 : 1;
  for (int i = 0; i < copies; ++i)
    arrive_later(chance(0.05) ? draw(0, 150) : draw(0, 3), receiver->node, links, arrive);
}

inline void run::arrive_later(microseconds delay, ps::member node, std::uint64_t links,
                              const std::function<void(process&)>& arrive) {
  after(delay, node, [this, links, arrive](process& receiver) {
    if (receiver.links == links) return arrive(receiver);
    if (receiver.links < links) arrive_later(milliseconds(1), receiver.node, links, arrive);
  });
}

inline void run::change_links() {
  ++links_;
  trace("the processes connect again");
  for (const auto& [node, each] : processes_) {
    if (!each->alive) continue;
    after(draw(0, 80), node, [links = links_](process& self) {
      if (self.links >= links) return;
      self.links = links;
      self.send_again();
    });
  }
}

// ---- the store ----
inline void run::look_for_map(ps::member node) {
  if (!looking_.insert(node).second) return;
  after(draw(1, 20), node, [this, node](process& self) {
    looking_.erase(node);
    self.apply_map(map_);
  });
}

inline void run::swap(ps::member node, std::uint64_t expected, const ps::shard_map& next) {
  ++swaps_under_way_;
  schedule(now_ + draw(0, 6), {}, [this, node, expected, next](process&) {
    --swaps_under_way_;
    if (map_.version == expected) {
      if (next.version <= expected) throw violation("a map is not newer than the one before");
      const auto text = next.encode();
      const auto read = ps::shard_map::decode(text);
      if (!read || !(*read == next)) throw violation("a map is not read as it was written");
      map_ = next;
      check_map();
    }
    if (chance(0.05)) {  // the answer is lost
      after(milliseconds(60), node, [](process& self) { self.swap_failed(); });
    } else {
      after(draw(0, 3), node, [this](process& self) { self.apply_map(map_); });
    }
    for (const auto& [other, each] : processes_) {
      if (each->alive && chance(0.6)) look_for_map(other);
    }
  });
}

}  // namespace simulation
