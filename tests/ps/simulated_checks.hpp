// What must hold in every run of a simulated job.
#pragma once

#include "simulation.hpp"

namespace simulation {

inline void run::tell(const std::string& line) const {
  if (!traced_) return;
  std::printf("%8.3f ms  %s\n", std::chrono::duration<double, std::milli>(now_.time_since_epoch()).count(),
              line.c_str());
}

inline void run::check_map() {
  if (traced_) {
    std::string servers;
    for (const auto& one : map_.servers) servers += " " + ps::to_string(one.node) + (one.leaving ? " leaving," : ",");
    tell("map " + std::to_string(map_.version) + ": servers" + servers + " " + std::to_string(map_.workers.size()) +
         " workers");
    for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
      const auto& range = map_.ranges[id];
      std::string line = "range " + std::to_string(id) + ", epoch " + std::to_string(range.epoch) + ":";
      for (const auto at : range.chain) line += " " + std::to_string(at);
      if (range.learner != ps::no_node) line += ", learns " + std::to_string(range.learner);
      if (range.leaver != ps::no_node) line += ", leaves " + std::to_string(range.leaver);
      tell(line);
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

// What a worker is told to count is at every server that the map gives the range to.
inline void run::check_acknowledged(const ps::member& node, ps::range_id id, std::uint64_t sequence) {
  acknowledged_[{id, node}] = sequence;
  check_everywhere(node, id, sequence, "acknowledged");
}

inline void run::check_everywhere(const ps::member& node, ps::range_id id, std::uint64_t sequence, const char* what) {
  for (const auto at : map_.ranges[id].chain) {
    const auto* const entry = map_.server(at);
    const auto* const one = entry == nullptr ? nullptr : find_server(entry->node);
    if (one != nullptr && !has(*one, node, id, sequence))
      throw violation("push " + std::to_string(sequence) + " of worker " + ps::to_string(node) + " to range " +
                      std::to_string(id) + " is " + what + ", but not at server " + ps::to_string(one->node) +
                      ", which has " + std::to_string(one->values.last(id, node)));
  }
}

inline void run::check_answer(worker_process& one, std::uint64_t pull, const ps::message& values) {
  ++seen_.pulls;
  if (world_.leases && values.range == order_range()) {
    ps::lease told;
    std::memcpy(static_cast<void*>(&told), values.payload.data(), sizeof told);
    return take_lease(one, told);
  }
  const auto [clock, when] = one.asked.at(pull);
  one.asked.erase(pull);
  std::vector<ledgers::row> rows(values.payload.size() / sizeof(ledgers::row));
  if (!rows.empty()) std::memcpy(rows.data(), values.payload.data(), values.payload.size());
  std::map<ps::member, std::uint64_t> seen;
  for (const auto& row : rows) seen[row.from] = std::max(seen[row.from], row.sequence);
  for (const auto& [node, sequence] : seen) check_everywhere(node, values.range, sequence, "read");
  std::set<std::uint64_t> places;
  for (const auto& row : rows) places.insert(row.place);
  if (const auto own = one.own.find(pull); own != one.own.end()) {
    if (seen[one.node] < own->second) throw violation("a pull misses a push of its own worker");
    one.own.erase(own);
  }
  if (world_.how.what == ps::consistency::kind::asynchronous) return;
  const std::uint64_t bound = world_.how.what == ps::consistency::kind::bulk ? 0 : world_.how.bound;
  for (const auto& [node, its] : processes_) {
    const auto* const other = dynamic_cast<const worker_process*>(its.get());
    if (other == nullptr || !other->alive || !map_.has_worker(node) || other->leased.joins) continue;
    if (other->core.clock_now() + bound < clock) throw violation("a worker is further ahead than the bound");
    const auto found = clocks_.find({values.range, node});
    if (found == clocks_.end()) continue;
    std::uint64_t due = 0;  // pushes of clocks that must have been seen
    bool all = true;        // those of places may be another worker's
    for (; due < found->second.size() && found->second[due] + bound < clock; ++due)
      all = all && (world_.leases ? places.contains(places_.at({values.range, node})[due]) : due < seen[node]);
    if (!all) {
      throw violation("a pull by worker " + ps::to_string(one.node) + " of range " + std::to_string(values.range) +
                      " at clock " + std::to_string(clock) + ", asked at " +
                      std::to_string(std::chrono::duration<double, std::milli>(when.time_since_epoch()).count()) +
                      " ms, has " + std::to_string(seen[node]) + " pushes of worker " + ps::to_string(node) +
                      " and must have " + std::to_string(due) + ", the bound is " + std::to_string(bound) +
                      ", its clock " + std::to_string(other->core.clock_now()));
    }
  }
}

inline outcome run::settle() {
  seen_.versions = map_.version;
  seen_.excused = excused_;
  if (excused_) return seen_;
  for (const auto& [node, one] : processes_) {
    const auto* const worker = dynamic_cast<const worker_process*>(one.get());
    if (worker == nullptr || !worker->alive) continue;
    if (traced_) {
      for (const auto& [at, its] : processes_) {
        if (const auto* const server = dynamic_cast<const server_process*>(its.get()); server != nullptr && its->alive)
          tell("server " + ps::to_string(at) + ": map " + std::to_string(server->core.map().version) + ", slowest " +
               std::to_string(server->core.slowest()));
      }
      for (const auto& known : map_.workers) tell("the map has worker " + ps::to_string(known));
      for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
        if (worker->core.counted(id) == worker->core.pushed(id) && worker->core.unanswered() == 0) continue;
        for (const auto& [at, its] : processes_) {
          if (const auto* const server = dynamic_cast<const server_process*>(its.get()); server && its->alive)
            tell("range " + std::to_string(id) + " at " + ps::to_string(at) + ": " +
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
        tell("range " + std::to_string(id) + " pushed " + std::to_string(worker->core.pushed(id)) + " counted " +
             std::to_string(worker->core.counted(id)) + " chain" + chain + " learner " +
             std::to_string(map_.ranges[id].learner));
      }
      tell("worker " + ps::to_string(node) + ": map " + std::to_string(worker->core.map().version) + ", clock " +
           std::to_string(worker->core.clock_now()) + ", said " + std::to_string(worker->core.clock_said()));
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
      if (other == nullptr || !(other->values.of(id) == head->values.of(id)))
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
