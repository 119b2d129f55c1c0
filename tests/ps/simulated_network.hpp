// The network and the store of the simulation: what is lost, comes twice or late, and the map that one server changes.
#pragma once

#include "simulation.hpp"

namespace simulation {

inline void run::send(ps::member from, std::uint64_t map_version, std::uint64_t clock, ps::member node,
                      const ps::message& what) {
  const ps::node_id to = node.at;
  const auto sender = processes_.find(from);
  if (to >= 64 || (sender != processes_.end() && sender->second->is_cut_from(to))) return;
  auto* const other = find_at(to);
  if (other == nullptr || (chance(world_.loss) && now_ < time{} + whole_again)) return;
  auto frame = std::make_shared<std::vector<std::byte>>(ps::frame_head_bytes + ps::encoded_bytes(what.payload.size()));
  ps::encode(ps::frame_head{.from = from, .to = node.incarnation, .map_version = map_version, .clock = clock},
             frame->data());
  ps::encode(what, frame->data() + ps::frame_head_bytes);
  // As large payloads do, some come by themselves.
  const bool apart = !what.payload.empty() && what.number % 3 == 0;
  constexpr auto heads = ps::frame_head_bytes + ps::message_head_bytes;
  const auto links = sender == processes_.end() ? links_ : sender->second->links;
  const std::function<void(process&)> arrive = [this, frame, apart, bytes = what.payload.size()](process& one) {
    if (chance(0.1)) look_for_map(one.node);  // what its sender knows may be in the store for long
    const std::span<const std::byte> all(*frame);
    apart ? one.hear(all.first(heads), all.subspan(heads, bytes)) : one.hear(all, {});
  };
  const int copies = chance(world_.duplicates) ? 2 : 1;
  for (int i = 0; i < copies; ++i) arrive_later(chance(0.05) ? draw(0, 150) : draw(0, 3), other->node, links, arrive);
}

inline void run::arrive_later(microseconds delay, ps::member node, std::uint64_t links,
                              const std::function<void(process&)>& arrive) {
  after(delay, node, [this, links, arrive](process& one) {
    if (one.links == links) return arrive(one);
    if (one.links < links) arrive_later(milliseconds(1), one.node, links, arrive);
  });
}

inline void run::change_links() {
  ++links_;
  tell("the processes connect again");
  for (const auto& [node, its] : processes_) {
    if (!its->alive) continue;
    after(draw(0, 80), node, [links = links_](process& one) {
      if (one.links >= links) return;
      one.links = links;
      one.send_again();
    });
  }
}

// ---- the store ----
inline void run::look_for_map(ps::member node) {
  if (!looking_.insert(node).second) return;
  after(draw(1, 20), node, [this, node](process& one) {
    looking_.erase(node);
    one.learn(map_);
  });
}

inline void run::swap(ps::member node, std::uint64_t expected, const ps::shard_map& next) {
  ++swaps_under_way_;
  at(now_ + draw(0, 6), {}, [this, node, expected, next](process&) {
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
      after(milliseconds(60), node, [](process& one) { one.swap_failed(); });
    } else {
      after(draw(0, 3), node, [this](process& one) { one.learn(map_); });
    }
    for (const auto& [other, its] : processes_) {
      if (its->alive && chance(0.6)) look_for_map(other);
    }
  });
}

}  // namespace simulation
