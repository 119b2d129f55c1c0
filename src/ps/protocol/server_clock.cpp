// What time makes of a server: workers' clocks, ends, silence.
#include "server.hpp"

#include <algorithm>
#include <optional>

namespace muster { inline namespace v0 { namespace ps {

bool server::is_done() const noexcept {
  return std::ranges::all_of(peers_.all,
                             [](const auto& one) { return !one.second.is_worker || one.second.said_goodbye; });
}

bool server::has_left(const member& worker) const noexcept {
  const auto* const its = peers_.find(worker);
  return its != nullptr && its->said_goodbye;
}

// Those of workers. Bulk: sums that no worker adds to any more are applied.
void server::clocks_moved(clock::time_point now) {
  std::optional<std::uint64_t> slowest;
  for (const auto& [node, its] : peers_.all) {
    if (!its.is_worker) continue;
    slowest = std::min(slowest.value_or(its.clock), its.clock);
    fastest_ = std::max(fastest_, its.clock);
  }
  slowest_ = slowest.value_or(fastest_);  // without workers no pull waits
  if (settings_.how.what != consistency::kind::bulk) return;
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    while (range.serves() && range.folded < slowest_) {
      const message sum{.clock = range.folded, .scale = range.scale.value_or(1.0f)};
      append(id, range, {.what = log_entry::kind::fold, .push = sum}, now);
    }
  }
}

void server::end_open_sums(clock::time_point now) {
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (!range.serves() || !range.scale) continue;
    const message sum{.clock = range.folded, .scale = *range.scale};
    append(id, range, {.what = log_entry::kind::fold, .push = sum}, now);
  }
}

// Those of workers that the map does not name any more: others get them.
void server::return_leases(clock::time_point now) {
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (!range.serves()) continue;
    for (const auto& node : values_.holders(id)) {
      if (!map_.has_worker(node)) append(id, range, {.what = log_entry::kind::gone, .from = node}, now);
    }
  }
}

void server::look_for_the_silent(clock::time_point now) {
  if (peers_.tick(now, settings_.silence)) back_at_ = now;
  for (auto& [node, its] : peers_.all) {
    if (node != self_ &&
        now - its.heard > peers_.patience(its.is_worker ? settings_.worker_silence
                                                        : std::max(settings_.silence, settings_.server_silence)))
      its.suspect = true;
  }
  if (now - pulsed_ < settings_.retry) return;
  pulsed_ = now;
  for (const auto& one : map_.servers) {
    if (one.node != self_) out_.send(one.node, {.what = message_kind::pulse});
  }
}

void server::tick(clock::time_point now) {
  if (fenced_) return;
  look_for_the_silent(now);
  govern(now);
  return_leases(now);
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (range.successor == no_node || !range.has_state || now - range.said < settings_.retry) continue;
    const auto has = range.successor_is_learner ? range.behind_has : range.committed;
    if (!range.behind_known) {
      offer(id, range, now);
    } else if (range.sent > has) {  // a server that has them already acknowledges again
      range.sent = has;
      send_entries(id, range, now);
    }
  }
}

}}}  // namespace muster::v0::ps
