// A model of C++'s memory for a model checker: atomic objects with every message that a thread may read, views that
// release and acquire carry, and fences. It is the operational model of Kang et al. (A promising semantics for
// relaxed-memory concurrency, 2017) without promises, as Lahav et al. (RC11, 2017) restrict it: no load returns a value
// whose store depends on it. Accesses in seq_cst count as release and acquire here, which allows more executions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace model {

enum class order : std::uint8_t { none, relaxed, acquire, release, acq_rel, seq_cst };

inline std::size_t at(int k) { return static_cast<std::size_t>(k); }
inline bool acquires(order o) { return o == order::acquire || o == order::acq_rel || o == order::seq_cst; }
inline bool releases(order o) { return o == order::release || o == order::acq_rel || o == order::seq_cst; }

enum class op : std::uint8_t {
  store,      // loc = value
  load,       // reg = loc
  await,      // loads until loc >= value; a load of another value has no effect
  await_new,  // loads until loc != reg2; reg = loc
  exchange,   // reg = loc; loc = value
  add,        // reg = loc; loc += value
  claim,      // if loc < value, as a relaxed compare-and-swap: loc = value, reg = 1; else reg = 0
  fence,      // seq_cst, unless the order is none
  barrier,    // membarrier: a fence of every thread, unless the order is none
  sleep,      // futex: waits while loc == value until a wake
  wake,       // futex: wakes the threads that wait for loc
  write,      // a plain object: loc = value
  read,       // a plain object: its value must be `value`
  jump,       // if reg == value, or always without a register
  copy,       // reg = reg2
  end
};

struct instruction {
  op kind;
  int loc = 0;
  int value = 0;
  order how = order::none;
  int reg = -1;
  int reg2 = -1;
  int target = -1;  // a label
};

/// A program of threads over atomic and plain objects, which all begin as 0.
struct program {
  std::string name;
  int atomics = 0, plains = 0;
  std::vector<std::vector<instruction>> threads;

  int atomic() { return atomics++; }
  int plain() { return plains++; }
};

using view = std::vector<std::uint8_t>;  // by atomic object: least readable message; then by thread: its clock

struct message {
  std::uint8_t value;
  bool closed;  // the next message is of a read-modify-write that has read this message
  view carried;
};

struct plain_object {
  std::uint8_t value = 0, writer = 255, written = 0;
  std::array<std::uint8_t, 3> read_at{};
};

struct thread_state {
  std::uint16_t at = 0;
  bool asleep = false, woken = false;
  std::array<std::uint8_t, 6> registers{};
  view now, acquired, released;
};

struct state {
  std::vector<std::vector<message>> objects;
  std::vector<plain_object> plains;
  std::vector<thread_state> threads;
  view fenced;

  [[nodiscard]] std::string key() const {
    std::string text;
    const auto add = [&](const view& v) { text.append(v.begin(), v.end()); };
    for (const auto& messages : objects) {
      text += static_cast<char>(messages.size());
      for (const auto& m : messages) {
        text += static_cast<char>(m.value);
        text += static_cast<char>(m.closed);
        add(m.carried);
      }
    }
    for (const auto& p : plains) {
      for (const auto byte : {p.value, p.writer, p.written}) text += static_cast<char>(byte);
      text.append(p.read_at.begin(), p.read_at.end());
    }
    for (const auto& t : threads) {
      text += static_cast<char>(t.at & 255);
      text += static_cast<char>(t.at >> 8);
      text += static_cast<char>(t.asleep * 2 + t.woken);
      text.append(t.registers.begin(), t.registers.end());
      add(t.now);
      add(t.acquired);
      add(t.released);
    }
    add(fenced);
    return text;
  }
};

inline void join(view& to, const view& from) {
  for (std::size_t k = 0; k < to.size(); ++k) to[k] = std::max(to[k], from[k]);
}

/// Visits every state that a program can reach. Operations that commute with all operations of other threads run at
/// once: plain accesses, jumps, and `await` of an object that one thread writes. Such an await reads the oldest message
/// that ends it: a later message carries a larger view, and a thread with a smaller view can do all that a thread with
/// a larger view can do.
class checker {
 public:
  explicit checker(const program& checked) : program_(checked), writers_(at(checked.atomics)) {
    for (std::size_t t = 0; t < program_.threads.size(); ++t) {
      for (const auto& i : program_.threads[t]) {
        if (i.kind == op::store || i.kind == op::exchange || i.kind == op::add || i.kind == op::claim)
          writers_[at(i.loc)].insert(t);
      }
    }
  }

  /// Returns the first fault, or an empty text.
  std::string run() {
    state first;
    const auto threads = program_.threads.size();
    const view zero(static_cast<std::size_t>(program_.atomics) + threads, 0);
    first.objects.assign(static_cast<std::size_t>(program_.atomics), {{0, false, zero}});
    first.plains.resize(static_cast<std::size_t>(program_.plains));
    first.threads.resize(threads);
    for (std::size_t t = 0; t < threads; ++t) {
      auto& thread = first.threads[t];
      thread.now = thread.acquired = thread.released = zero;
      thread.now[static_cast<std::size_t>(program_.atomics) + t] = 1;
    }
    first.fenced = zero;
    for (std::size_t t = 0; t < threads; ++t) run_local(first, t);
    push(std::move(first));
    while (fault_.empty() && !pending_.empty()) {
      const state current = std::move(pending_.back());
      pending_.pop_back();
      expand(current);
    }
    return fault_;
  }
  [[nodiscard]] std::size_t states() const { return seen_.size(); }

 private:
  const instruction& next_of(const state& s, std::size_t t) const { return program_.threads[t][s.threads[t].at]; }

  void fail(std::size_t t, const instruction& i, const char* reason) {
    if (fault_.empty())
      fault_ = std::string(reason) + " of object " + std::to_string(i.loc) + " at thread " + std::to_string(t);
  }

  // Runs the thread's operations that commute with those of other threads. A race is detected in whichever order its
  // two accesses run.
  void run_local(state& s, std::size_t t) {
    auto& thread = s.threads[t];
    const auto clocks = static_cast<std::size_t>(program_.atomics);
    for (;; ++thread.at) {
      const instruction& i = next_of(s, t);
      if (i.kind == op::jump) {
        if (i.reg < 0 || thread.registers[static_cast<std::size_t>(i.reg)] == i.value)
          thread.at = static_cast<std::uint16_t>(i.target - 1);
      } else if (i.kind == op::copy) {
        thread.registers[static_cast<std::size_t>(i.reg)] = thread.registers[static_cast<std::size_t>(i.reg2)];
      } else if (i.kind == op::write || i.kind == op::read) {
        auto& object = s.plains[static_cast<std::size_t>(i.loc)];
        if (object.writer != 255 && thread.now[clocks + object.writer] < object.written) fail(t, i, "race");
        if (i.kind == op::read) {
          if (object.value != i.value) fail(t, i, "wrong value");
          object.read_at[t] = thread.now[clocks + t];
          continue;
        }
        for (std::size_t other = 0; other < s.threads.size(); ++other) {
          if (other != t && thread.now[clocks + other] < object.read_at[other]) fail(t, i, "race");
        }
        object = {static_cast<std::uint8_t>(i.value), static_cast<std::uint8_t>(t), thread.now[clocks + t], {}};
      } else if (i.kind == op::await && writers_[at(i.loc)].size() == 1) {
        const auto& messages = s.objects[at(i.loc)];
        std::size_t k = thread.now[at(i.loc)];
        while (k < messages.size() && messages[k].value < i.value) ++k;
        if (k == messages.size()) return;
        note_read(s, t, i.loc, k, i.how);
      } else {
        return;
      }
    }
  }

  void push(state s) {
    if (seen_.insert(s.key()).second) pending_.push_back(std::move(s));
  }

  void finish(state s, std::size_t t) {
    ++s.threads[t].at;
    for (std::size_t each = 0; each < s.threads.size(); ++each) run_local(s, each);
    push(std::move(s));
  }

  // Adds a message at place `at` of the object's modification order: later messages move.
  void insert(state& s, std::size_t t, int loc, std::size_t at, message added) const {
    const auto l = static_cast<std::size_t>(loc);
    const auto move = [&](view& v) { v[l] = static_cast<std::uint8_t>(v[l] + (v[l] >= at ? 1 : 0)); };
    for (auto& messages : s.objects) {
      for (auto& m : messages) move(m.carried);
    }
    for (auto& thread : s.threads) {
      move(thread.now);
      move(thread.acquired);
      move(thread.released);
    }
    move(s.fenced);
    added.carried[l] = static_cast<std::uint8_t>(at);
    auto& thread = s.threads[t];
    thread.now[l] = thread.acquired[l] = static_cast<std::uint8_t>(at);
    auto& messages = s.objects[l];
    messages.insert(messages.begin() + static_cast<std::ptrdiff_t>(at), std::move(added));
  }

  void tick(state& s, std::size_t t) const { ++s.threads[t].now[static_cast<std::size_t>(program_.atomics) + t]; }

  void note_read(state& s, std::size_t t, int loc, std::size_t at, order how) const {
    auto& thread = s.threads[t];
    const auto l = static_cast<std::size_t>(loc);
    const view carried = s.objects[l][at].carried;
    join(thread.acquired, carried);
    if (acquires(how)) join(thread.now, carried);
    thread.now[l] = std::max(thread.now[l], static_cast<std::uint8_t>(at));
    join(thread.acquired, thread.now);
  }

  // Fences in seq_cst have a total order: a later fence's thread reads no older message than an earlier fence's thread.
  // They carry no clocks, since alone they do not make accesses to plain objects ordered.
  void fence(state& s, std::size_t t) const {
    auto& thread = s.threads[t];
    join(thread.now, thread.acquired);
    for (std::size_t l = 0; l < static_cast<std::size_t>(program_.atomics); ++l)
      s.fenced[l] = thread.now[l] = std::max(thread.now[l], s.fenced[l]);
    thread.acquired = thread.released = thread.now;
    tick(s, t);
  }

  // Stores after any message that the thread knows, except between a read-modify-write and the message that it read.
  bool store(const state& s, std::size_t t, const instruction& i) {
    const auto& messages = s.objects[static_cast<std::size_t>(i.loc)];
    for (std::size_t k = s.threads[t].now[static_cast<std::size_t>(i.loc)]; k < messages.size(); ++k) {
      if (messages[k].closed) continue;
      state next = s;
      const auto& thread = next.threads[t];
      insert(next, t, i.loc, k + 1,
             {static_cast<std::uint8_t>(i.value), false, releases(i.how) ? thread.now : thread.released});
      if (releases(i.how)) tick(next, t);
      finish(std::move(next), t);
    }
    return true;
  }

  bool load(const state& s, std::size_t t, const instruction& i) {
    const auto& messages = s.objects[static_cast<std::size_t>(i.loc)];
    const auto& registers = s.threads[t].registers;
    bool found = false;
    for (std::size_t k = s.threads[t].now[static_cast<std::size_t>(i.loc)]; k < messages.size(); ++k) {
      if (i.kind == op::await && messages[k].value < i.value) continue;
      if (i.kind == op::await_new && messages[k].value == registers[static_cast<std::size_t>(i.reg2)]) continue;
      found = true;
      state next = s;
      note_read(next, t, i.loc, k, i.how);
      if (i.reg >= 0) next.threads[t].registers[static_cast<std::size_t>(i.reg)] = messages[k].value;
      finish(std::move(next), t);
    }
    return found;
  }

  // A failed claim reads as a relaxed load.
  bool modify(const state& s, std::size_t t, const instruction& i) {
    const auto l = static_cast<std::size_t>(i.loc);
    const auto& messages = s.objects[l];
    for (std::size_t k = s.threads[t].now[l]; k < messages.size(); ++k) {
      const std::uint8_t old = messages[k].value;
      const bool fails = i.kind == op::claim && old >= i.value;
      if (!fails && messages[k].closed) continue;
      state next = s;
      note_read(next, t, i.loc, k, fails ? order::relaxed : i.how);
      auto& thread = next.threads[t];
      if (i.reg >= 0)
        thread.registers[static_cast<std::size_t>(i.reg)] = i.kind == op::claim ? std::uint8_t{!fails} : old;
      if (!fails) {
        view carried = releases(i.how) ? thread.now : thread.released;
        join(carried, messages[k].carried);  // the release sequence goes on
        const int value = i.kind == op::add ? old + i.value : i.value;
        next.objects[l][k].closed = true;
        insert(next, t, i.loc, k + 1, {static_cast<std::uint8_t>(value), false, std::move(carried)});
        if (releases(i.how)) tick(next, t);
      }
      finish(std::move(next), t);
    }
    return true;
  }

  // The kernel compares with the newest value. A woken thread returns.
  bool sleep(const state& s, std::size_t t, const instruction& i) {
    state next = s;
    auto& thread = next.threads[t];
    if (thread.asleep && !thread.woken) return false;
    const bool sleeps = !thread.asleep && s.objects[static_cast<std::size_t>(i.loc)].back().value == i.value;
    thread.asleep = sleeps;
    thread.woken = false;
    sleeps ? push(std::move(next)) : finish(std::move(next), t);
    return true;
  }

  bool step(const state& s, std::size_t t) {
    const instruction& i = next_of(s, t);
    if (i.kind == op::store) return store(s, t, i);
    if (i.kind == op::load || i.kind == op::await || i.kind == op::await_new) return load(s, t, i);
    if (i.kind == op::exchange || i.kind == op::add || i.kind == op::claim) return modify(s, t, i);
    if (i.kind == op::sleep) return sleep(s, t, i);
    state next = s;
    if (i.kind == op::wake) {
      for (std::size_t other = 0; other < next.threads.size(); ++other) {
        if (next.threads[other].asleep && next_of(next, other).loc == i.loc) next.threads[other].woken = true;
      }
    } else if (i.how != order::none) {
      fence(next, t);
      for (std::size_t other = 0; i.kind == op::barrier && other < next.threads.size(); ++other) fence(next, other);
      if (i.kind == op::barrier) fence(next, t);
    }
    finish(std::move(next), t);
    return true;
  }

  void expand(const state& s) {
    bool moved = false, ended = true;
    for (std::size_t t = 0; t < s.threads.size(); ++t) {
      if (next_of(s, t).kind == op::end) continue;
      ended = false;
      moved = step(s, t) || moved;
    }
    if (!moved && !ended && fault_.empty()) fault_ = "threads wait for ever";
  }

  const program& program_;
  std::vector<std::set<std::size_t>> writers_;  // by atomic object: the threads that write it
  std::vector<state> pending_;
  std::unordered_set<std::string> seen_;
  std::string fault_;
};

}  // namespace model
