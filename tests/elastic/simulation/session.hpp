// The session of a simulated process, with the rules of the library's session.
#pragma once

#include "../simulation.hpp"

namespace simulation {

inline void run::stop_session(process& peer) {
  if (peer.generation == 0) return;
  peer.generation = 0;
  peer.waits = false;
  trace(std::to_string(peer.id) + " has stopped at step " + std::to_string(peer.step));
  peer.protocol.stopped(now_);
}

inline void run::greet(process& peer) {
  for (const auto& m : peer.group.members) {
    if (m.id == peer.id) continue;
    send(peer, m.id, true, [this, sender = peer.id, g = peer.generation](process& other) {
      early_[{other.id, g}].insert(sender);
      advance_forming(other);
    });
  }
  advance_forming(peer);
}

inline void run::advance_forming(process& peer) {
  if (peer.generation == 0) return;
  peer.hellos = early_[{peer.id, peer.generation}];
  if (peer.hellos.size() + 1 < peer.group.members.size() || peer.waits) return;
  if (peer.has_state) return begin_step(peer);
  const auto& state_sources = peer.group.state_sources;
  send(peer, state_sources[random_.below(state_sources.size())], true,
       [this, receiver = peer.id, g = peer.generation](process& holder) {
         if (holder.generation != g || !holder.has_state) return;
         if (holder.step != holder.group.progress) return;  // impossible: the holder needs this member to proceed
         after(draw(0, 40), holder.id, [this, sender = holder.id, receiver, g] {
           auto& giver = *find(sender);
           if (giver.generation == g) send_state(giver, receiver);
         });
       });
}

inline void run::send_state(process& holder, member_id receiver) {
  send(holder, receiver, true, [this, g = holder.generation, step = holder.step, state = holder.state](process& other) {
    if (other.generation != g || other.has_state) return;
    other.step = step;
    other.state = state;
    other.has_state = true;
    other.protocol.committed(step, step);
    begin_step(other);
  });
}

inline void run::begin_step(process& peer) {
  peer.waits = true;
  if (peer.halt != 0 && peer.step >= peer.halt) return stop_session(peer);
  after(draw(20, 50), peer.id, [this, id = peer.id, attempt = peer.attempt, g = peer.generation] {
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
    time_out_later(self, draw(600, 700));
  });
}

inline void run::try_commit(process& peer) {
  if (peer.generation == 0 || !peer.waits) return;
  const auto found = parts_.find({peer.id, peer.generation, peer.step + 1});
  if (found == parts_.end() || found->second.size() < peer.group.members.size() || !found->second.contains(peer.id))
    return;
  parts_.erase(found);
  ++peer.step;
  peer.state = muster::mix(peer.state ^ (peer.step << 20) ^ peer.generation);
  ++peer.attempt;
  ledger_.commits(now_, peer);
  peer.protocol.committed(peer.step, peer.step);
  begin_step(peer);
}

// Suspects the missing members at a collective's deadline, or at the end of a connection.
inline void run::time_out_later(process& peer, microseconds limit) {
  after(limit, peer.id, [this, id = peer.id, attempt = peer.attempt] {
    auto& self = *find(id);
    if (self.attempt != attempt || self.generation == 0) return;
    for (const auto& m : self.group.members) {
      const bool forming = self.hellos.size() + 1 < self.group.members.size();
      const auto& arrived = forming ? self.hellos : parts_[{id, self.generation, self.step + 1}];
      // Members of a generation that is over are late for that reason.
      if (m.id != id && !self.must_stop && !arrived.contains(m.id))
        self.protocol.suspect(now_, m.id, "it did not arrive");
    }
    ++self.attempt;
    stop_session(self);
  });
}

}  // namespace simulation
