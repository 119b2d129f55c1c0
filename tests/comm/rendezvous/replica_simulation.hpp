// An embedded store over a simulated clock and network: one thread, everything drawn from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/random.hpp>

#include "comm/net/replica.hpp"

namespace replica_simulation {

namespace detail = muster::detail;
using detail::replica_member;
using detail::replica_message;
using detail::store_replica;
using time = muster::clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;

struct world {
  int members = 4;
  int hosts = 2;
  bool crashes = true;
  bool pauses = true;
  bool partitions = true;
  bool resets = true;
  bool joins = true;
  bool leaves = true;
  int faults = 6;
  int echoes = 3;  ///< at most so many more, each while a view is being made, at one of those who make it
};

struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct outcome {
  std::uint64_t answered = 0;
  std::uint64_t views = 0;
  bool lives = false;
  bool progresses = false;
};

constexpr int keys = 3;

/// What the clients see must be what one store would show them.
class history {
 public:
  /// Call begins: no answer may be older than what somebody knows now.
  [[nodiscard]] std::uint64_t floor(int key) const { return known_[static_cast<std::size_t>(key)]; }
  void tries(int key, const std::string& value) { tried_[static_cast<std::size_t>(key)].insert(value); }
  void sees(int key, std::uint64_t floor, std::uint64_t version, const std::string& value) {
    const auto k = static_cast<std::size_t>(key);
    if (version < floor) throw violation("an answer is older than what was known when it was asked for");
    if (version != 0 && !tried_[k].contains(value)) throw violation("a value that nobody wrote");
    const auto first = values_.try_emplace(version, key, value).first;
    if (version != 0 && first->second != std::pair(key, value)) throw violation("two values of one version");
    known_[k] = std::max(known_[k], version);
  }
  void swaps(int key, std::uint64_t floor, std::uint64_t expected, std::uint64_t version, const std::string& value) {
    if (expected < floor) throw violation("a swap of a version that was known to be over");
    if (version <= expected) throw violation("a version that does not grow");
    if (!swapped_.emplace(key, expected).second) throw violation("two swaps of one version");
    sees(key, floor, version, value);
  }

 private:
  std::uint64_t known_[keys] = {};
  std::set<std::string> tried_[keys];
  std::map<std::uint64_t, std::pair<int, std::string>> values_;
  std::set<std::pair<int, std::uint64_t>> swapped_;
};

class run {
 public:
  run(std::uint64_t seed, const world& of) : random_(seed), world_(of), cuts_(static_cast<std::size_t>(of.hosts), 0) {
    for (int i = 0; i < of.members; ++i) start(i == 0 ? 0 : host(), now_ + draw(0, 20));
    plan_faults();
  }

  /// Faults end after 4 s; at 10 s everything must have settled.
  outcome finish() {
    const auto end = time{} + milliseconds(10000);
    while (!queue_.empty() && queue_.top().when <= end) {
      const auto next = queue_.top();
      queue_.pop();
      now_ = next.when;
      dispatch(next);
    }
    return settle();
  }

 private:
  struct pending {
    detail::store_call what = detail::store_call::get;
    int key = 0;
    std::uint64_t floor = 0;
    std::uint64_t expected = 0;
    std::string value;
  };
  struct process {
    process(const replica_member& self, time now)
        : me(self), replica(self, {milliseconds(50), milliseconds(250), milliseconds(700)}, now) {}
    replica_member me;
    store_replica replica;
    bool alive = true;
    time paused_until{};
    std::map<std::uint64_t, pending> calls;
    std::map<int, std::uint64_t> versions;  // last seen, by key
    std::uint64_t last_call = 0;
    std::uint64_t lease = 0;
    time last_answer{};
  };
  struct event {
    time when;
    std::uint64_t order;
    std::uint64_t whose;  // 0: nobody's
    std::shared_ptr<std::function<void()>> what;
    bool operator<(const event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };
  using pair = std::pair<std::uint64_t, std::uint64_t>;
  /// One direction of a connection.
  struct line {
    std::uint64_t epoch = 0;
    time last{};
    std::deque<std::pair<time, replica_message>> under_way;
  };

  microseconds draw(int low, int high) {  // milliseconds
    return microseconds(low * 1000 +
                        static_cast<int>(random_.below(static_cast<std::uint64_t>(high - low) * 1000 + 1)));
  }
  bool chance(double p) { return random_.uniform() < p; }
  std::uint64_t host() { return random_.below(static_cast<std::uint64_t>(world_.hosts)); }
  void at(time when, std::uint64_t whose, std::function<void()> what) {
    queue_.push({when, ++order_, whose, std::make_shared<std::function<void()>>(std::move(what))});
  }
  void after(microseconds delay, std::uint64_t whose, std::function<void()> what) {
    at(now_ + delay, whose, std::move(what));
  }
  process* find(std::uint64_t id) {
    const auto found = processes_.find(id);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  }
  void dispatch(const event& next) {
    if (next.whose == 0) return (*next.what)();
    auto* const one = find(next.whose);
    if (one == nullptr) return;
    if (one->paused_until > now_) {
      queue_.push({one->paused_until, ++order_, next.whose, next.what});
      return;
    }
    (*next.what)();
    if (one->alive) carry_out(*one);
  }
  void tell(const std::string& text) const {
    if (!traced_) return;
    std::printf("%9.3f ms  %s\n", std::chrono::duration<double, std::milli>(now_.time_since_epoch()).count(),
                text.c_str());
  }
  static std::string name(std::uint64_t id) { return std::to_string(id); }

  // ---- processes ----
  void start(std::uint64_t on, time when) {
    replica_member self;
    self.id = ++last_id_;
    self.host = on + 1;
    at(when, 0, [this, self] {
      processes_.emplace(self.id, std::make_unique<process>(self, now_));
      tell(name(self.id) + " starts on host " + std::to_string(self.host));
      tick(self.id);
      look_around(self.id);
      ask(self.id);
    });
  }
  void tick(std::uint64_t id) {
    after(draw(8, 14), id, [this, id] {
      find(id)->replica.tick(now_);
      tick(id);
    });
  }
  // The first two hosts have a place each where one process at a time waits for those that come; who waits at the
  // first may begin. A leader looks who waits there.
  void look_around(std::uint64_t id) {
    after(draw(20, 60), id, [this, id] {
      auto& one = *find(id);
      if (one.me.host <= 2) {
        auto& holder = holders_[one.me.host - 1];
        if (find(holder) == nullptr) {
          holder = id;
          if (one.me.host == 1 && is_first(id)) one.replica.found(now_, world_.members);
        }
      }
      const auto other = holders_[random_.below(2)];
      auto* its = find(other);
      const bool seeks = !one.replica.is_member() || one.replica.leads();
      // Of many new ones without the old ones a second store could come: here it is to be one.
      if (its != nullptr && !is_first(id) && !its->replica.is_member()) its = nullptr;
      if (its != nullptr && seeks && reaches(one.me.host, its->me.host) && reaches(its->me.host, one.me.host)) {
        after(draw(0, 3), id, [this, id, its] { find(id)->replica.meet(its->me); });
      }
      look_around(id);
    });
  }

  [[nodiscard]] bool is_first(std::uint64_t id) const { return id <= static_cast<std::uint64_t>(world_.members); }

  // ---- network ----
  bool reaches(std::uint64_t from, std::uint64_t to) const {
    return from == to || (cuts_[from - 1] & (std::uint64_t{1} << (to - 1))) == 0;
  }
  void send(process& from, const replica_member& to, replica_message what) {
    const auto decoded = replica_message::decode(what.encode());
    if (!decoded) throw violation("a message that cannot be read");
    const auto found = processes_.find(to.id);
    if (found == processes_.end()) throw violation("a message to nobody");
    if (!found->second->alive && reaches(from.me.host, found->second->me.host)) return refused(from.me.id, to.id);
    auto& way = lines_[{from.me.id, to.id}];
    way.last = std::max(way.last, now_ + (chance(0.03) ? draw(0, 120) : draw(0, 2)));
    way.under_way.emplace_back(way.last, *decoded);
    if (way.under_way.size() == 1) carry(from.me.id, to.id, way.epoch, way.last);
  }
  // What is cut off waits: the system sends it again, as long as the connection lasts.
  void carry(std::uint64_t from, std::uint64_t to, std::uint64_t epoch, time when) {
    at(when, to, [=, this] {
      auto& way = lines_[{from, to}];
      if (way.epoch != epoch) return;
      auto& receiver = *find(to);
      if (!reaches(processes_.at(from)->me.host, receiver.me.host))
        return carry(from, to, epoch, now_ + milliseconds(5));
      const auto what = std::move(way.under_way.front().second);
      way.under_way.pop_front();
      if (!way.under_way.empty()) carry(from, to, epoch, std::max(now_, way.under_way.front().first));
      trace(from, to, what);
      receiver.replica.hear(now_, from, what);
      using kind = replica_message::kind;
      if (what.what == kind::prepare || what.what == kind::promise || what.what == kind::install) echo(from, to);
    });
  }
  void trace(std::uint64_t from, std::uint64_t to, const replica_message& what) const {
    if (!traced_ || std::string_view(std::getenv("MUSTER_TEST_TRACE")) != "all") return;
    static constexpr const char* names[] = {"",       "join",    "see",       "prepare", "promise",
                                            "refuse", "install", "installed", "change",  "done",
                                            "beat",   "echo",    "call",      "reply",   "gone"};
    tell(name(from) + " to " + name(to) + ": " + names[static_cast<int>(what.what)] + " " +
         std::to_string(what.number.round) + "." + std::to_string(what.number.by) + " view " +
         std::to_string(what.view.number.round));
  }
  void refused(std::uint64_t asker, std::uint64_t gone) {
    after(draw(0, 2), asker, [this, asker, gone] {
      auto& one = *find(asker);
      if (one.me.host == processes_.at(gone)->me.host) return one.replica.prove_dead(now_, gone);
      one.replica.lost(now_, gone);
    });
  }
  void break_line(std::uint64_t a, std::uint64_t b) {
    for (const auto& [from, to] : {pair(a, b), pair(b, a)}) {
      const auto found = lines_.find({from, to});
      if (found != lines_.end()) {
        ++found->second.epoch;
        found->second.under_way.clear();
      }
      if (find(to) != nullptr) after(draw(0, 3), to, [this, from, to] { find(to)->replica.lost(now_, from); });
    }
  }

  // ---- what a replica wants ----
  void carry_out(process& one) {
    for (;;) {
      const auto actions = one.replica.take();
      if (actions.empty() || !one.alive) return;
      for (const auto& what : actions) {
        std::visit([&](const auto& a) { perform(one, a); }, what);
      }
      const auto& view = one.replica.view();
      if (view.in_force && view.number > newest_.number) {
        newest_ = view;
        ++views_;
        std::string text;
        for (const auto& m : view.members) text += " " + name(m.id) + "@" + std::to_string(m.host);
        tell("view " + std::to_string(view.number.round) + " of" + text);
      }
    }
  }
  void perform(process& one, const detail::replica_act::send& a) { send(one, a.to, a.what); }
  void perform(process& one, const detail::replica_act::kill& a) {
    tell(name(one.me.id) + " kills " + name(a.who.id));
    crash(a.who.id);
  }
  void perform(process& one, const detail::replica_act::end&) {
    tell(name(one.me.id) + " is left behind");
    if (newest_.has(one.me.id)) throw violation("fenced, and it is a member");
    crash(one.me.id);
  }
  void perform(process& one, const detail::replica_act::answer& a) {
    const auto said = detail::parse_reply(a.reply);
    if (!said) throw violation("an answer that cannot be read");
    const auto asked = one.calls.find(said->id);
    if (asked == one.calls.end()) throw violation("an answer to nothing");
    const auto call = asked->second;
    one.calls.erase(asked);
    one.last_answer = now_;
    ++answered_;
    using detail::store_call;
    if (call.what == store_call::lease) {
      one.lease = said->number;
    } else if (call.what == store_call::swap && said->status == detail::store_status::done) {
      history_.swaps(call.key, call.floor, call.expected, said->number, call.value);
      one.versions[call.key] = said->number;
    } else if (call.what == store_call::swap && said->value == call.value) {
      throw violation("a swap that was made is told that it was not");
    } else if (call.what == store_call::get || call.what == store_call::swap || call.what == store_call::watch) {
      history_.sees(call.key, call.floor, said->number, std::string(said->value));
      if (call.what == store_call::watch && said->number == call.expected) throw violation("woken by nothing");
      one.versions[call.key] = said->number;
    } else if (said->status == detail::store_status::ended) {
      one.lease = 0;
    }
  }
  // Several at a time, as of several threads.
  void ask(std::uint64_t id) {
    after(draw(1, 30), id, [this, id] {
      auto& one = *find(id);
      if (one.calls.size() < 4 && now_ < time{} + milliseconds(9500)) begin_call(one);
      ask(id);
    });
  }
  void begin_call(process& one) {
    using detail::store_call;
    pending call;
    call.key = static_cast<int>(random_.below(keys));
    call.floor = history_.floor(call.key);
    const std::string key = "key " + std::to_string(call.key);
    const auto id = ++one.last_call;
    detail::store_request asked{.id = id, .key = key};
    const auto what = random_.below(10);
    if (what < 5) {
      call.what = store_call::swap;
      call.expected = one.versions[call.key];
      call.value = name(one.me.id) + " wrote " + std::to_string(id);
      history_.tries(call.key, call.value);
      asked.number = call.expected;
      asked.value = call.value;
    } else if (what < 7) {
      call.what = store_call::get;
    } else if (what < 8 && std::none_of(one.calls.begin(), one.calls.end(),
                                        [](const auto& c) { return c.second.what == store_call::watch; })) {
      call.what = store_call::watch;
      call.expected = asked.number = one.versions[call.key];
    } else if (one.lease == 0) {
      call.what = store_call::lease;
      asked.key = {};
      asked.number = 400000;
    } else {
      call.what = store_call::keep;
      asked.key = {};
      asked.number = one.lease;
    }
    asked.what = call.what;
    one.calls.emplace(id, call);
    one.replica.call(now_, asked);
  }

  // ---- faults ----
  void crash(std::uint64_t id) {
    auto* const victim = find(id);
    if (victim == nullptr) return;
    victim->alive = false;
    tell(name(id) + " ends");
    see_end(*victim);
  }
  void see_end(const process& victim) {
    for (const auto& [other, its] : processes_) {
      if (!its->alive) continue;
      if (its->me.host == victim.me.host) {
        after(draw(0, 4), other,
              [this, other = other, id = victim.me.id] { find(other)->replica.prove_dead(now_, id); });
      } else if (reaches(victim.me.host, its->me.host) && lines_.contains({victim.me.id, other})) {
        // Behind what it said last.
        const auto when = std::max(lines_[{victim.me.id, other}].last, now_ + draw(0, 2));
        at(when, other, [this, other = other, id = victim.me.id] { find(other)->replica.lost(now_, id); });
      }
    }
  }
  std::uint64_t anybody() {
    std::vector<std::uint64_t> living;
    for (const auto& [id, its] : processes_) {
      if (its->alive) living.push_back(id);
    }
    return living.empty() ? 0 : living[random_.below(living.size())];
  }
  std::uint64_t leader_or_anybody() {
    if (chance(0.5) && newest_ && find(newest_.number.by) != nullptr) return newest_.number.by;
    return anybody();
  }
  void plan_faults() {
    const auto count = random_.below(static_cast<std::uint64_t>(world_.faults) + 1);
    auto last = microseconds{};
    for (std::uint64_t i = 0; i < count; ++i) {
      // Many at nearly the same time: what matters is what happens during a change.
      const auto when = i > 0 && chance(0.6) ? last + draw(0, 60) : draw(50, 3200);
      last = when;
      at(time{} + when, 0, [this] { one_fault(); });
    }
    at(time{} + milliseconds(4000), 0, [this] {
      for (auto& cut : cuts_) cut = 0;
    });
  }
  void one_fault() {
    const auto kind = random_.below(7);
    const auto one = leader_or_anybody();
    if (one == 0) return;
    if (kind <= 1 && world_.crashes) {
      for (auto n = 1 + random_.below(2); n > 0; --n) crash(n == 1 ? one : anybody());
    } else if (kind == 2 && world_.pauses) {
      find(one)->paused_until = now_ + draw(20, 2500);
      tell(name(one) + " stands still");
    } else if (kind == 3 && world_.partitions && world_.hosts > 1) {
      cut(host(), host());
    } else if (kind == 4 && world_.resets) {
      const auto other = anybody();
      tell("a reset between " + name(one) + " and " + name(other));
      if (other != one) break_line(one, other);
    } else if (kind == 5 && world_.joins) {
      const auto where = host();
      start(where, now_);
      if (chance(0.5)) start(host(), now_);
    } else if (kind == 6 && world_.leaves) {
      at(now_, one, [this, one] {
        auto& its = *find(one);
        its.replica.leave();
        carry_out(its);
        its.alive = false;
        tell(name(one) + " leaves");
        see_close(its);
      });
    }
  }
  // What happens while a view is made is where the protocol is at its weakest.
  void echo(std::uint64_t one, std::uint64_t other) {
    if (echoes_ >= world_.echoes || now_ > time{} + milliseconds(3400) || !chance(0.15)) return;
    ++echoes_;
    const auto victim = chance(0.5) ? one : other;
    const auto leader = newest_.number.by;
    const auto kind = random_.below(4);
    at(now_ + draw(0, 3), 0, [this, one, other, victim, leader, kind] {
      auto* const its = find(victim);
      if (its == nullptr) return;
      if (kind == 0 && world_.crashes) {
        crash(victim);
      } else if (kind == 1 && world_.pauses) {
        its->paused_until = now_ + draw(5, 1200);
        tell(name(victim) + " stands still");
      } else if (kind == 2 && world_.resets) {
        const auto whom = chance(0.5) && leader != 0 && leader != victim ? leader : victim == one ? other : one;
        tell("a reset between " + name(victim) + " and " + name(whom));
        break_line(victim, whom);
      } else if (kind == 3 && world_.partitions && world_.hosts > 1) {
        cut(its->me.host - 1, host());
      }
    });
  }
  // Its process may live on.
  void see_close(const process& gone) {
    for (const auto& [other, its] : processes_) {
      if (!its->alive || !lines_.contains({gone.me.id, other})) continue;
      const auto when = std::max(lines_[{gone.me.id, other}].last, now_ + draw(0, 2));
      at(when, other, [this, other = other, id = gone.me.id] { find(other)->replica.lost(now_, id); });
    }
  }
  void cut(std::uint64_t a, std::uint64_t b) {
    if (a == b) return;
    tell("hosts " + std::to_string(a + 1) + " and " + std::to_string(b + 1) + " are cut");
    cuts_[a] |= std::uint64_t{1} << b;
    if (chance(0.8)) cuts_[b] |= std::uint64_t{1} << a;
    const bool breaks = chance(0.4);
    at(now_ + draw(50, 2000), 0, [this, a, b, breaks] {
      cuts_[a] &= ~(std::uint64_t{1} << b);
      cuts_[b] &= ~(std::uint64_t{1} << a);
      if (!breaks) return;
      for (const auto& [one, its] : processes_) {
        for (const auto& [other, theirs] : processes_) {
          if (its->me.host == a + 1 && theirs->me.host == b + 1) break_line(one, other);
        }
      }
    });
  }

  // ---- the end ----
  // More than half live, or somebody does and who does not died where another lives: that is proof.
  bool suffices(const std::vector<replica_member>& members) {
    const auto lives = [this](const replica_member& m) { return find(m.id) != nullptr; };
    const auto living = static_cast<std::size_t>(std::count_if(members.begin(), members.end(), lives));
    const bool proven = std::all_of(members.begin(), members.end(), [&](const replica_member& m) {
      return std::any_of(members.begin(), members.end(),
                         [&](const replica_member& o) { return o.host == m.host && lives(o); });
    });
    return 2 * living > members.size() || (living > 0 && proven);
  }
  outcome settle() {
    outcome seen;
    seen.answered = answered_;
    seen.views = views_;
    // The views that may be in force, as far as anybody who lives knows.
    std::vector<std::vector<replica_member>> lists{newest_.members};
    for (const auto& [id, its] : processes_) {
      const auto& view = its->replica.view();
      if (!its->alive || view.in_force || view.number < newest_.number) continue;
      lists.insert(lists.end(), view.before.begin(), view.before.end());
      lists.push_back(view.members);
    }
    seen.lives = std::any_of(newest_.members.begin(), newest_.members.end(),
                             [&](const replica_member& m) { return find(m.id) != nullptr; });
    for (const auto& [id, its] : processes_) {
      if (its->alive && now_ - its->last_answer < milliseconds(1500)) seen.progresses = true;
    }
    const bool enough =
        std::all_of(lists.begin(), lists.end(), [this](const auto& members) { return suffices(members); });
    if (seen.lives && enough && !seen.progresses) throw violation("enough live, and nobody gets an answer");
    return seen;
  }

  muster::random_stream random_;
  world world_;
  time now_{};
  std::uint64_t order_ = 0;
  std::uint64_t last_id_ = 0;
  std::priority_queue<event> queue_;
  std::map<std::uint64_t, std::unique_ptr<process>> processes_;
  std::map<pair, line> lines_;
  std::vector<std::uint64_t> cuts_;  // by host: those it does not reach, as bits
  std::uint64_t holders_[2] = {};    // who waits for those that come
  detail::replica_view newest_;      // in force, that anybody knew of
  std::uint64_t views_ = 0;
  std::uint64_t answered_ = 0;
  int echoes_ = 0;
  history history_;
  bool traced_ = std::getenv("MUSTER_TEST_TRACE") != nullptr;  // with one seed: what happened
};

}  // namespace replica_simulation
