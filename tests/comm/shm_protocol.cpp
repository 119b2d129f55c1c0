// The protocols of the shm transport for the model checker in memory_model.hpp, on two and three ranks. Each function
// mirrors the function of include/muster/comm/transports/shm that its comment names. shm_orders.py reads the memory
// orders in those files and passes them as NAME=ORDER.
//
//     shm_protocol contribution.store=release ... [--only NAME]
//
// Prints the number of states of each protocol, and the first fault: a data race, a wrong value, or ranks that wait for
// ever. Exit status 1: there is a fault.
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory_model.hpp"

namespace {

using model::at;
using model::instruction;
using model::op;
using model::order;

std::map<std::string, order> orders;
std::set<std::string> used;

order order_of(const std::string& name) {
  const auto found = orders.find(name);
  if (found == orders.end()) throw std::runtime_error("no order is given for " + name);
  used.insert(name);
  return found->second;
}

// The program of one thread under construction.
class thread {
 public:
  explicit thread(std::vector<instruction>& code) : code_(code) {}
  ~thread() { add({op::end}); }
  thread(const thread&) = delete;
  thread& operator=(const thread&) = delete;

  void add(instruction i) { code_.push_back(i); }
  void write(int object, int value) { add({op::write, object, value}); }
  void read(int object, int value) { add({op::read, object, value}); }
  void store(int object, int value, const char* name) { add({op::store, object, value, order_of(name)}); }
  void load(int object, int reg, const char* name) { add({op::load, object, 0, order_of(name), reg}); }
  void await(int object, int value, const char* name) { add({op::await, object, value, order_of(name)}); }
  void exchange(int object, int value, int reg, const char* name) {
    add({op::exchange, object, value, order_of(name), reg});
  }
  void plus(int object, int value, const char* name) { add({op::add, object, value, order_of(name)}); }
  void fence(const char* name) { add({op::fence, 0, 0, order_of(name)}); }
  // Returns a jump, if `reg` equals `value`, whose target is set later.
  std::size_t jump_if(int reg, int value) {
    add({op::jump, 0, value, order::none, reg});
    return code_.size() - 1;
  }
  std::size_t jump() { return jump_if(-1, 0); }
  void land(std::size_t at) { land(at, here()); }
  void land(std::size_t at, int target) { code_[at].target = target; }
  [[nodiscard]] int here() const { return static_cast<int>(code_.size()); }

 private:
  std::vector<instruction>& code_;
};

using objects = std::vector<std::vector<int>>;

objects make(model::program& in, bool plain, int rows, int columns) {
  objects all(static_cast<std::size_t>(rows), std::vector<int>(static_cast<std::size_t>(columns)));
  for (auto& row : all) {
    for (int& each : row) each = plain ? in.plain() : in.atomic();
  }
  return all;
}

// Part of all collectives: slot_is_free, publish_small or publish_buffers, all_contributed, publish_finished.
struct contributions {
  contributions(model::program& in, int rank_count, int place_count)
      : ranks(rank_count),
        places(place_count),
        sequence(make(in, false, rank_count, place_count)),
        payload(make(in, true, rank_count, place_count)),
        finished(make(in, false, 1, rank_count)) {}

  static int value(int rank, int number) { return 16 * (rank + 1) + number; }

  void await_finished(thread& in, int me, int number) const {
    for (int p = 0; p < ranks; ++p) {
      if (p != me) in.await(finished[0][at(p)], number, "finished.load");
    }
  }
  // `known`: number of the last collective that all ranks are known to have finished.
  void publish(thread& in, int me, int number, int known) const {
    if (number > places && known < number - places) await_finished(in, me, number - places);
    in.write(payload[at(me)][at(number % places)], value(me, number));
    in.store(sequence[at(me)][at(number % places)], number, "contribution.store");
  }
  void receive(thread& in, int peer, int number) const {
    in.await(sequence[at(peer)][at(number % places)], number, "contribution.load");
    in.read(payload[at(peer)][at(number % places)], value(peer, number));
  }
  void receive_all(thread& in, int me, int number) const {
    for (int p = 0; p < ranks; ++p) {
      if (p != me) receive(in, p, number);
    }
  }
  void finish(thread& in, int me, int number) const { in.store(finished[0][at(me)], number, "finished.store"); }

  int ranks, places;
  objects sequence, payload, finished;
};

model::program with_threads(std::string name, int count) {
  model::program made;
  made.name = std::move(name);
  made.threads.resize(at(count));
  return made;
}

// test_small of an allreduce.
model::program small_allreduce(int ranks, int places, int collectives) {
  auto made = with_threads("small allreduce", ranks);
  const contributions shared(made, ranks, places);
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    for (int number = 1; number <= collectives; ++number) {
      shared.publish(in, me, number, number - 2);
      shared.receive_all(in, me, number);
      shared.finish(in, me, number);
    }
  }
  return made;
}

// test_small of a broadcast: only the root contributes.
model::program small_broadcast(int ranks, int places, int collectives) {
  auto made = with_threads("small broadcast", ranks);
  const contributions shared(made, ranks, places);
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    for (int number = 1; number <= collectives; ++number) {
      me == 0 ? shared.publish(in, me, number, 0) : shared.receive(in, 0, number);
      shared.finish(in, me, number);
    }
  }
  return made;
}

// run_reduce_family and run_direct of an allreduce on registered buffers. `any`: any rank folds any block (`claim`).
model::program direct_allreduce(int ranks, bool any, int collectives) {
  auto made = with_threads(any ? "direct allreduce, claimed blocks" : "direct allreduce", ranks);
  const contributions shared(made, ranks, 8);
  const auto input = make(made, true, ranks, ranks), output = make(made, true, ranks, ranks);
  const auto claimed = make(made, false, 1, ranks), folded = make(made, false, 1, ranks);
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    for (int number = 1; number <= collectives; ++number) {
      for (int block = 0; block < ranks; ++block) in.write(input[at(me)][at(block)], number);
      shared.publish(in, me, number, number - 2);
      shared.receive_all(in, me, number);
      for (int k = 0; k < (any ? ranks : 1); ++k) {
        const int block = (me + k) % ranks;
        in.add({op::claim, claimed[0][at(block)], number, order_of("claimed.swap"), 0});
        const auto skip = in.jump_if(0, 0);
        for (int p = 0; p < ranks; ++p) in.read(input[at(p)][at(block)], number);
        for (int p = 0; p < ranks; ++p) in.write(output[at(p)][at(block)], number);
        in.store(folded[0][at(block)], number, "step.store");
        in.land(skip);
      }
      in.await(folded[0][at(me)], number, "folded.load");
      for (int p = 0; p < ranks; ++p) {
        if (p != me) in.await(folded[0][at(p)], number, "step.load");
      }
      shared.finish(in, me, number);
      for (int block = 0; block < ranks; ++block) in.read(output[at(me)][at(block)], number);
    }
  }
  return made;
}

// The staging areas of run_staged: the place of staging_slot, with rotated_slot.
struct staging {
  staging(model::program& in, int rank_count, int area_depth)
      : ranks(rank_count), depth(area_depth), places(make(in, true, rank_count, area_depth * (rank_count + 1))) {}

  [[nodiscard]] int place(int rank, int global, int block) const {
    const int index = block == ranks ? block : (block - rank + ranks) % ranks;
    const int reader = index == ranks ? 1 : index;
    const int shift = global / depth % ranks * reader % ranks;
    const int owner = rank >= shift ? rank - shift : rank - shift + ranks;
    return places[at(owner)][at(global % depth * (ranks + 1) + index)];
  }

  int ranks, depth;
  objects places;
};

// run_staged of an allreduce: stage_round, fold_round, copy_round.
model::program staged_allreduce(int ranks, int rounds, int collectives) {
  constexpr int depth = 2;
  auto made = with_threads("staged allreduce", ranks);
  const contributions shared(made, ranks, 8);
  const staging area(made, ranks, depth);
  const auto staged = make(made, false, 1, ranks), folded = make(made, false, 1, ranks);
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    for (int number = 1; number <= collectives; ++number) {
      const auto step = [&](int k) { return 8 * number + k; };
      const auto global = [&](int round) { return round + number * rounds; };
      const auto reached = [&](const objects& counter, int k) {
        for (int p = 0; p < ranks; ++p) {
          if (p != me) in.await(counter[0][at(p)], step(k), "step.load");
        }
      };
      const auto stage = [&](int round) {
        for (int p = 0; p < ranks; ++p) {
          if (p != me) in.write(area.place(me, global(round), p), step(round));
        }
        in.store(staged[0][at(me)], step(round + 1), "step.store");
      };
      shared.publish(in, me, number, number - 2);
      shared.receive_all(in, me, number);
      if (number > 1) shared.await_finished(in, me, number - 1);
      stage(0);
      for (int round = 0; round < rounds; ++round) {
        if (round + 1 < rounds) {
          if (round + 1 >= depth) reached(folded, round + 2 - depth);
          stage(round + 1);
        }
        reached(staged, round + 1);
        for (int p = 0; p < ranks; ++p) {
          if (p != me) in.read(area.place(p, global(round), me), step(round));
        }
        in.write(area.place(me, global(round), ranks), step(round));
        in.store(folded[0][at(me)], step(round + 1), "step.store");
        reached(folded, round + 1);
        for (int p = 0; p < ranks; ++p) {
          if (p != me) in.read(area.place(p, global(round), ranks), step(round));
        }
      }
      shared.finish(in, me, number);
    }
  }
  return made;
}

// broadcast and broadcast_staged from a private buffer.
model::program staged_broadcast(int ranks, int rounds, int collectives) {
  constexpr int depth = 1;
  auto made = with_threads("staged broadcast", ranks);
  const contributions shared(made, ranks, 8);
  const int chunk = made.plain(), staged = made.atomic();
  const auto consumed = make(made, false, 1, ranks);
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    for (int number = 1; number <= collectives; ++number) {
      const auto step = [&](int k) { return 8 * number + k; };
      me == 0 ? shared.publish(in, me, number, 0) : shared.receive(in, 0, number);
      if (me == 0 && number > 1) shared.await_finished(in, me, number - 1);
      for (int round = 0; round < rounds; ++round) {
        if (me == 0) {
          for (int p = 1; p < ranks && round >= depth; ++p)
            in.await(consumed[0][at(p)], step(round + 1 - depth), "step.load");
          in.write(chunk, step(round));
          in.store(staged, step(round + 1), "step.store");
        } else {
          in.await(staged, step(round + 1), "staged.load");
          in.read(chunk, step(round));
          in.store(consumed[0][at(me)], step(round + 1), "step.store");
        }
      }
      shared.finish(in, me, number);
    }
  }
  return made;
}

// broadcast from a registered buffer, which the root writes again after the call.
model::program direct_broadcast(int ranks, int collectives) {
  auto made = with_threads("direct broadcast", ranks);
  const contributions shared(made, ranks, 8);
  const int buffer = made.plain();
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    for (int number = 1; number <= collectives; ++number) {
      if (me == 0) {
        in.write(buffer, number);
        shared.publish(in, me, number, 0);
        shared.finish(in, me, number);
        shared.await_finished(in, me, number);
      } else {
        shared.receive(in, 0, number);
        in.read(buffer, number);
        shared.finish(in, me, number);
      }
    }
  }
  return made;
}

// shm_messages: push at the sender, unread, begin_message and copy_payload at the receiver.
model::program ring(int capacity, int messages) {
  auto made = with_threads("ring of messages", 2);
  const int head = made.atomic(), tail = made.atomic();
  const auto bytes = make(made, true, 1, capacity);
  thread sender(made.threads[0]), receiver(made.threads[1]);
  for (int n = 0; n < messages; ++n) {
    sender.await(tail, n + 1 - capacity, "tail.load");
    sender.write(bytes[0][at(n % capacity)], n + 1);
    sender.store(head, n + 1, "head.store");
    receiver.await(head, n + 1, "head.load");
    receiver.read(bytes[0][at(n % capacity)], n + 1);
    receiver.store(tail, n + 1, "tail.store");
  }
  return made;
}

// shm_messages::progress in a large group: mark_arrival and take_arrivals. A receiver looks only at marked rings.
model::program arrivals(int senders) {
  auto made = with_threads("marks of arrivals", senders + 1);
  const int marks = made.atomic();
  const auto heads = make(made, false, 1, senders), bytes = make(made, true, 1, senders);
  for (int k = 0; k < senders; ++k) {
    thread in(made.threads[at(k)]);
    in.write(bytes[0][at(k)], 1);
    in.store(heads[0][at(k)], 1, "head.store");
    in.plus(marks, 1 << k, "arrivals.or");
  }
  thread in(made.threads[at(senders)]);
  // For each set of messages that have been read, a block of code for each set of marks.
  const int sets = 1 << senders;
  std::vector<int> begins(at(sets), -1);
  std::vector<std::pair<std::size_t, int>> jumps;
  for (int have = 0; have < sets - 1; ++have) {
    begins[at(have)] = in.here();
    in.add({op::await, marks, 1, order_of("arrivals.load")});
    in.exchange(marks, 0, 0, "arrivals.exchange");
    for (int marked = 1; marked < sets; ++marked) {
      const auto skip_set = [&] {
        const auto enter = in.jump_if(0, marked);
        const auto skip = in.jump();
        in.land(enter);
        return skip;
      }();
      // The heads are read one after another; each outcome has its own continuation.
      const std::function<void(int, int)> look = [&](int sender, int now) {
        if (sender == senders) return jumps.emplace_back(in.jump(), now), void();
        if ((marked >> sender & 1) == 0 || (now >> sender & 1) != 0) return look(sender + 1, now);
        in.load(heads[0][at(sender)], 1, "head.load");
        const auto nothing = in.jump_if(1, 0);
        in.read(bytes[0][at(sender)], 1);
        look(sender + 1, now | 1 << sender);
        in.land(nothing);
        look(sender + 1, now);
      };
      look(0, have);
      in.land(skip_set);
    }
    jumps.emplace_back(in.jump(), have);
  }
  for (const auto& [from, set] : jumps) in.land(from, set == sets - 1 ? in.here() : begins[at(set)]);
  return made;
}

// shm_transport: notify at the senders; poll and read_mailboxes at the receiver, with one message from each sender.
model::program mailboxes(int senders) {
  auto made = with_threads("mailboxes", senders + 1);
  const int count = made.atomic();
  const auto written = make(made, false, 1, senders), messages = make(made, true, 1, senders);
  for (int k = 0; k < senders; ++k) {
    thread in(made.threads[at(k)]);
    in.write(messages[0][at(k)], 1);
    in.store(written[0][at(k)], 1, "written.store");
    in.plus(count, 1, "control_messages.add");
  }
  thread in(made.threads[at(senders)]);
  const int sets = 1 << senders;
  std::vector<int> begins(at(sets), -1);
  std::vector<std::pair<std::size_t, int>> jumps;
  for (int have = 0; have < sets - 1; ++have) {
    begins[at(have)] = in.here();  // register 0: the count seen
    in.add({op::await_new, count, 0, order_of("control_messages.load"), 1, 0});
    for (int k = 0; k < senders; ++k) {
      if ((have >> k & 1) != 0) continue;
      in.load(written[0][at(k)], 2, "written.load");
      const auto nothing = in.jump_if(2, 0);
      in.read(messages[0][at(k)], 1);
      jumps.emplace_back(in.jump(), have | 1 << k);
      in.land(nothing);
    }
    in.add({op::copy, 0, 0, order::none, 0, 1});
    jumps.emplace_back(in.jump(), have);
  }
  for (const auto& [from, set] : jumps) in.land(from, set == sets - 1 ? in.here() : begins[at(set)]);
  return made;
}

// notify and read_mailboxes of two messages in a mailbox with one place. The sender drops a message without a place.
model::program full_mailbox() {
  auto made = with_threads("full mailbox", 2);
  const int written = made.atomic(), read = made.atomic(), place = made.plain();
  {
    thread in(made.threads[0]);
    in.write(place, 1);
    in.store(written, 1, "written.store");
    in.load(read, 0, "read.load");
    const auto full = in.jump_if(0, 0);
    in.write(place, 2);
    in.store(written, 2, "written.store");
    in.land(full);
  }
  thread in(made.threads[1]);
  in.await(written, 1, "written.load");
  in.read(place, 1);
  in.store(read, 1, "read.store");
  in.load(written, 0, "written.load");
  const auto nothing = in.jump_if(0, 1);
  in.read(place, 2);
  in.land(nothing);
  return made;
}

// shm_group::wait at rank 0; a write and wake at the others. `membarrier`: shm_group::make_visible is no fence.
model::program sleep(int wakers, bool membarrier) {
  auto made = with_threads(membarrier ? "sleep and wake by membarrier" : "sleep and wake by fences", wakers + 1);
  const int asleep = made.atomic();
  const auto flags = make(made, false, 1, wakers);
  for (int k = 0; k < wakers; ++k) {
    thread in(made.threads[at(k + 1)]);
    in.store(flags[0][at(k)], 1, "contribution.store");
    if (!membarrier) in.fence("visible.fence");
    in.load(asleep, 0, "asleep.load");
    const auto awake = in.jump_if(0, 0);
    in.exchange(asleep, 0, 0, "asleep.exchange");
    const auto too_late = in.jump_if(0, 0);
    in.add({op::wake, asleep});
    in.land(awake);
    in.land(too_late);
  }
  thread in(made.threads[0]);
  for (int k = 0; k < wakers; ++k) {
    const int begin = in.here();
    in.load(flags[0][at(k)], 0, "contribution.load");
    const auto ready = in.jump_if(0, 1);
    in.load(asleep, 1, "asleep.own_load");
    const auto second_call = in.jump_if(1, 1);
    in.store(asleep, 1, "asleep.set");
    in.fence("wait.fence");
    if (membarrier) in.add({op::barrier, 0, 0, order_of("wait.membarrier")});
    in.land(in.jump(), begin);
    in.land(second_call);
    in.add({op::sleep, asleep, 1});
    in.store(asleep, 0, "asleep.clear");
    in.land(in.jump(), begin);
    in.land(ready);
  }
  return made;
}

// peer_write_guard at the writers, cancel at rank 0: afterwards its buffer is in use for something else.
model::program revoke(int writers) {
  auto made = with_threads("revoked memory", writers + 1);
  const int revoked = made.atomic();
  const auto writing = make(made, false, 1, writers), buffer = make(made, true, 1, writers);
  for (int k = 0; k < writers; ++k) {
    thread in(made.threads[at(k + 1)]);
    in.store(writing[0][at(k)], 1, "writing.set");
    in.fence("writing.fence");
    in.load(revoked, 0, "revoked.load");
    const auto refused = in.jump_if(0, 1);
    in.write(buffer[0][at(k)], 1);
    in.land(refused);
    in.store(writing[0][at(k)], 0, "writing.clear");
  }
  thread in(made.threads[0]);
  in.store(revoked, 1, "revoked.store");
  in.fence("revoked.fence");
  for (int k = 0; k < writers; ++k) {
    const int begin = in.here();
    in.load(writing[0][at(k)], 0, "writing.load");
    const auto ended = in.jump_if(0, 0);
    in.land(in.jump(), begin);
    in.land(ended);
  }
  for (int k = 0; k < writers; ++k) in.write(buffer[0][at(k)], 2);
  return made;
}

// ~shm_group at all ranks, and release_retired at rank 0, which then reuses its slot.
model::program leave(int ranks) {
  auto made = with_threads("reused slots", ranks);
  const int leavers = made.atomic(), slot = made.plain(), begun = made.atomic();
  for (int me = 0; me < ranks; ++me) {
    thread in(made.threads[at(me)]);
    if (me == 0) {
      in.write(slot, 1);
      in.store(begun, 1, "contribution.store");
      in.plus(leavers, 1, "leavers.add");
      in.await(leavers, ranks, "leavers.load");
      in.write(slot, 2);
    } else {
      in.await(begun, 1, "contribution.load");
      in.read(slot, 1);
      in.plus(leavers, 1, "leavers.add");
    }
  }
  return made;
}

std::vector<model::program> protocols() {
  std::vector<model::program> all;
  for (const int ranks : {2, 3}) {
    all.push_back(small_allreduce(ranks, 1, 4));
    all.push_back(small_allreduce(ranks, 2, 5));
    all.push_back(small_broadcast(ranks, 2, 5));
    all.push_back(direct_allreduce(ranks, false, 3));
    all.push_back(direct_allreduce(ranks, true, ranks == 2 ? 2 : 1));
    all.push_back(staged_allreduce(ranks, 4, 2));
    all.push_back(staged_broadcast(ranks, 3, 2));
    all.push_back(direct_broadcast(ranks, 4));
    all.push_back(arrivals(ranks - 1));
    all.push_back(mailboxes(ranks - 1));
    all.push_back(sleep(ranks - 1, false));
    all.push_back(sleep(ranks - 1, true));
    all.push_back(revoke(ranks - 1));
    all.push_back(leave(ranks));
  }
  all.push_back(ring(2, 5));
  all.push_back(full_mailbox());
  return all;
}

order parse(const std::string& text) {
  static const std::map<std::string, order> names = {{"none", order::none},       {"relaxed", order::relaxed},
                                                     {"acquire", order::acquire}, {"release", order::release},
                                                     {"acq_rel", order::acq_rel}, {"seq_cst", order::seq_cst}};
  return names.at(text);
}

int check_all(const std::string& only) {
  int faults = 0;
  std::size_t states = 0;
  for (const auto& each : protocols()) {
    if (!only.empty() && only != each.name) continue;
    model::checker visit(each);
    const std::string fault = visit.run();
    states += visit.states();
    std::printf("%s, %zu ranks: %zu states%s%s\n", each.name.c_str(), each.threads.size(), visit.states(),
                fault.empty() ? "" : ", FAULT: ", fault.c_str());
    std::fflush(stdout);
    if (!fault.empty()) {
      ++faults;
      break;
    }
  }
  for (const auto& [name, how] : orders) {
    if (only.empty() && faults == 0 && !used.contains(name)) throw std::runtime_error("no protocol uses " + name);
  }
  std::printf("%zu states\n", states);
  return faults == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string only;
  try {
    for (int k = 1; k < argc; ++k) {
      const std::string word = argv[k];
      if (word == "--only" && k + 1 < argc) {
        only = argv[++k];
        continue;
      }
      const auto equals = word.find('=');
      orders[word.substr(0, equals)] = parse(word.substr(equals + 1));
    }
    return check_all(only);
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "shm_protocol: %s\n", failed.what());
    return 2;
  }
}
