// The session of a simulated process: the same rules as those of the library.
#pragma once

#include "../simulation.hpp"

namespace simulation {

inline void run::stop_session(process& one) {
  if (one.generation == 0) return;
  one.generation = 0;
  one.waits = false;
  tell(std::to_string(one.id) + " has stopped at step " + std::to_string(one.step));
  one.protocol.stopped(now_);
}

inline void run::greet(process& one) {
  for (const auto& m : one.group.members) {
    if (m.id == one.id) continue;
    send(one, m.id, true, [this, from = one.id, g = one.generation](process& other) {
      early_[{other.id, g}].insert(from);
      advance_forming(other);
    });
  }
  advance_forming(one);
}

inline void run::advance_forming(process& one) {
  if (one.generation == 0) return;
  one.hellos = early_[{one.id, one.generation}];
  if (one.hellos.size() + 1 < one.group.members.size() || one.waits) return;
  if (one.has_state) return begin_step(one);
  const auto& state_sources = one.group.state_sources;
  send(one, state_sources[random_.below(state_sources.size())], true,
       [this, to = one.id, g = one.generation](process& holder) {
         if (holder.generation != g || !holder.has_state) return;
         if (holder.step != holder.group.step) return;  // cannot be: it needs this member to go on
         after(draw(0, 40), holder.id, [this, from = holder.id, to, g] {
           auto& giver = *find(from);
           if (giver.generation == g) give_state(giver, to);
         });
       });
}

inline void run::give_state(process& holder, member_id to) {
  send(holder, to, true, [this, g = holder.generation, step = holder.step, state = holder.state](process& other) {
    if (other.generation != g || other.has_state) return;
    other.step = step;
    other.state = state;
    other.has_state = true;
    other.protocol.committed(step, step);
    begin_step(other);
  });
}

inline void run::begin_step(process& one) {
  one.waits = true;
  if (one.halt != 0 && one.step >= one.halt) return stop_session(one);
  after(draw(20, 50), one.id, [this, id = one.id, attempt = one.attempt, g = one.generation] {
    auto& self = *find(id);
    if (self.attempt != attempt || self.generation != g) return;
    const auto key = std::tuple(id, g, self.step + 1);
    parts_[key].insert(id);
    for (const auto& m : self.group.members) {
      if (m.id == id) continue;
      send(self, m.id, true, [this, id, g, step = self.step + 1](process& other) {
        parts_[{other.id, g, step}].insert(id);
        try_commit(other);
      });
    }
    try_commit(self);
    give_up_later(self, draw(600, 700));
  });
}

inline void run::try_commit(process& one) {
  if (one.generation == 0 || !one.waits) return;
  const auto found = parts_.find({one.id, one.generation, one.step + 1});
  if (found == parts_.end() || found->second.size() < one.group.members.size() || !found->second.contains(one.id))
    return;
  parts_.erase(found);
  ++one.step;
  one.state = muster::mix(one.state ^ (one.step << 20) ^ one.generation);
  ++one.attempt;
  ledger_.commits(now_, one);
  one.protocol.committed(one.step, one.step);
  begin_step(one);
}

// A collective's deadline, or the end of a connection: those that are missing are suspect.
inline void run::give_up_later(process& one, microseconds limit) {
  after(limit, one.id, [this, id = one.id, attempt = one.attempt] {
    auto& self = *find(id);
    if (self.attempt != attempt || self.generation == 0) return;
    for (const auto& m : self.group.members) {
      const bool forming = self.hellos.size() + 1 < self.group.members.size();
      const auto& seen = forming ? self.hellos : parts_[{id, self.generation, self.step + 1}];
      // Of a generation that is over they are late for that reason.
      if (m.id != id && !self.told && !seen.contains(m.id)) self.protocol.suspect(now_, m.id, "it did not come");
    }
    ++self.attempt;
    stop_session(self);
  });
}

}  // namespace simulation
