// The invariants of every run of a simulated job.
#pragma once

#include "simulation.hpp"

namespace simulation {

inline void run::trace(const std::string& line) const {
  if (!traced_) return;
  std::printf("%8.3f ms  %s\n", std::chrono::duration<double, std::milli>(now_.time_since_epoch()).count(),
              line.c_str());
}

inline void run::check_map() {
  if (traced_) {
    std::string servers;
    for (const auto& server : map_.servers)
      servers += " " + ps::to_string(server.node) + (server.leaving ? " leaving," : ",");
    trace("map " + std::to_string(map_.version) + ": servers" + servers + " " + std::to_string(map_.workers.size()) +
          " workers");
    for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
      const auto& range = map_.ranges[id];
      std::string line = "range " + std::to_string(id) + ", epoch " + std::to_string(range.epoch) + ":";
      for (const auto at : range.chain) line += " " + std::to_string(at);
      if (range.learner != ps::no_node) line += ", learns " + std::to_string(range.learner);
      if (range.leaver != ps::no_node) line += ", leaves " + std::to_string(range.leaver);
      trace(line);
    }
  }
  for (const auto& range : map_.ranges) {
    const bool held = std::any_of(range.chain.begin(), range.chain.end(), [&](ps::node_id at) {
      const auto* const entry = map_.server(at);
      return entry != nullptr && find(entry->node) != nullptr;
    });
    if (held) continue;
    if (server_faults_ <= world_.replicas) throw violation("a range is lost, though no more servers failed than may");
    excused_ = true;
  }
}

// Checks that an acknowledged push is at every server to which the map gives the range.
inline void run::check_acknowledged(const ps::member& node, ps::range_id id, std::uint64_t sequence) {
  acknowledged_[{id, node}] = sequence;
  check_everywhere(node, id, sequence, "acknowledged");
}

inline void run::check_everywhere(const ps::member& node, ps::range_id id, std::uint64_t sequence,
                                  const char* event_name) {
  for (const auto at : map_.ranges[id].chain) {
    const auto* const entry = map_.server(at);
    const auto* const server = entry == nullptr ? nullptr : find_server(entry->node);
    if (server != nullptr && !has(*server, node, id, sequence))
      throw violation("push " + std::to_string(sequence) + " of worker " + ps::to_string(node) + " to range " +
                      std::to_string(id) + " is " + event_name + ", but not at server " + ps::to_string(server->node) +
                      ", which has " + std::to_string(server->values.last(id, node)));
  }
}

inline void run::check_answer(worker_process& self, std::uint64_t pull, const ps::message& values) {
  ++seen_.pulls;
  if (world_.leases && values.range == order_range()) {
    ps::lease granted;
    std::memcpy(static_cast<void*>(&granted), values.payload.data(), sizeof granted);
    return take_lease(self, granted);
  }
  const auto [clock, when] = self.pulls.at(pull);
  self.pulls.erase(pull);
  std::vector<ledgers::row> rows(values.payload.size() / sizeof(ledgers::row));
  if (!rows.empty()) std::memcpy(rows.data(), values.payload.data(), values.payload.size());
  std::map<ps::member, std::uint64_t> visible;
  for (const auto& row : rows) visible[row.worker] = std::max(visible[row.worker], row.sequence);
  for (const auto& [node, sequence] : visible) check_everywhere(node, values.range, sequence, "read");
  std::set<std::uint64_t> places;
  for (const auto& row : rows) places.insert(row.place);
  if (const auto own = self.own.find(pull); own != self.own.end()) {
    if (visible[self.node] < own->second) throw violation("a pull misses a push of its own worker");
    self.own.erase(own);
  }
  if (world_.model.type == ps::consistency::kind::asynchronous) return;
  const std::uint64_t bound = world_.model.type == ps::consistency::kind::bulk ? 0 : world_.model.most_clocks_behind;
  for (const auto& [node, each] : processes_) {
    const auto* const other = dynamic_cast<const worker_process*>(each.get());
    if (other == nullptr || !other->alive || !map_.has_worker(node) || other->leased.joins) continue;
    if (other->core.clock_now() + bound < clock) throw violation("a worker is further ahead than the bound");
    const auto found = clocks_.find({values.range, node});
    if (found == clocks_.end()) continue;
    std::uint64_t due = 0;  // number of pushes whose clocks must be visible
    bool all = true;        // in a world with leases, another worker may have pushed a place
    for (; due < found->second.size() && found->second[due] + bound < clock; ++due)
      all = all && (world_.leases ? places.contains(places_.at({values.range, node})[due]) : due < visible[node]);
    if (!all) {
      throw violation("a pull by worker " + ps::to_string(self.node) + " of range " + std::to_string(values.range) +
                      " at clock " + std::to_string(clock) + ", asked at " +
                      std::to_string(std::chrono::duration<double, std::milli>(when.time_since_epoch()).count()) +
                      " ms, has " + std::to_string(visible[node]) + " pushes of worker " + ps::to_string(node) +
                      " and must have " + std::to_string(due) + ", the bound is " + std::to_string(bound) +
                      ", its clock " + std::to_string(other->core.clock_now()));
    }
  }
}

inline outcome run::settle() {
  seen_.versions = map_.version;
  seen_.excused = excused_;
  if (excused_) return seen_;
  for (const auto& [node, each] : processes_) {
    const auto* const worker = dynamic_cast<const worker_process*>(each.get());
    if (worker == nullptr || !worker->alive) continue;
    if (traced_) {
      for (const auto& [at, peer] : processes_) {
        if (const auto* const server = dynamic_cast<const server_process*>(peer.get());
            server != nullptr && peer->alive)
          trace("server " + ps::to_string(at) + ": map " + std::to_string(server->core.map().version) + ", slowest " +
                std::to_string(server->core.slowest()));
      }
      for (const auto& worker_in_map : map_.workers) trace("the map has worker " + ps::to_string(worker_in_map));
      for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
        if (worker->core.acknowledged_up_to(id) == worker->core.pushed(id) && worker->core.unanswered() == 0) continue;
        for (const auto& [at, peer] : processes_) {
          if (const auto* const server = dynamic_cast<const server_process*>(peer.get()); server && peer->alive)
            trace("range " + std::to_string(id) + " at " + ps::to_string(at) + ": " +
                  std::to_string(server->core.version(id)) + " entries" + (server->core.serves(id) ? ", served" : ""));
        }
        std::string chain;
        for (const auto at : map_.ranges[id].chain) {
          const auto* const server = find_server(map_.server(at)->node);
          chain += " " + std::to_string(at);
          if (server != nullptr)
            chain +=
                ":" + std::to_string(server->values.last(id, node)) + "/" + std::to_string(server->core.version(id));
        }
        trace("range " + std::to_string(id) + " pushed " + std::to_string(worker->core.pushed(id)) + " counted " +
              std::to_string(worker->core.acknowledged_up_to(id)) + " chain" + chain + " learner " +
              std::to_string(map_.ranges[id].learner));
      }
      trace("worker " + ps::to_string(node) + ": map " + std::to_string(worker->core.map().version) + ", clock " +
            std::to_string(worker->core.clock_now()) + ", said " + std::to_string(worker->core.reported_clock()));
    }
    throw violation("worker " + ps::to_string(node) + " is not at its end (step " + std::to_string(worker->step) +
                    ", " + std::to_string(worker->core.unacknowledged()) + " pushes not acknowledged, " +
                    std::to_string(worker->core.unanswered()) + " pulls not answered)");
  }
  if (map_.servers.empty()) throw violation("no server is left");
  const auto copies = std::min<std::size_t>(world_.replicas + 1, map_.servers.size());
  for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
    const auto& range = map_.ranges[id];
    if (range.chain.size() != copies || range.learner != ps::no_node || range.leaver != ps::no_node)
      throw violation("a range does not have its copies again");
    const auto* const head = find_server(map_.server(range.head())->node);
    if (head == nullptr || !head->core.serves(id)) throw violation("a range is served by nobody");
    for (const auto at : range.chain) {
      const auto* const other = find_server(map_.server(at)->node);
      if (other == nullptr || !(other->values.ledger_of(id) == head->values.ledger_of(id)))
        throw violation("two copies of a range differ");
    }
    for (const auto& [key, sequence] : acknowledged_) {
      if (key.first == id && !has(*head, key.second, id, sequence))
        throw violation("push " + std::to_string(sequence) + " of worker " + ps::to_string(key.second) + " to range " +
                        std::to_string(id) + " was acknowledged, and server " + ps::to_string(head->node) + " has " +
                        std::to_string(head->values.last(id, key.second)));
    }
  }
  if (world_.leases) check_order();
  return seen_;
}

}  // namespace simulation
