// The protocol of the parameter server over a simulated clock, network and store: one thread, everything drawn from a
// seed. What servers keep is which pushes they have had, so that nothing that is lost or comes twice stays unseen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/ps/server.hpp>
#include <muster/ps/worker.hpp>

namespace simulation {

namespace ps = muster::ps;
using time = muster::clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// What may happen in a run, each a probability or a bound.
struct world {
  int servers = 3;
  int workers = 3;
  std::size_t ranges = 6;
  std::uint32_t replicas = 1;
  ps::consistency how;
  int steps = 12;
  int faults = 4;
  bool server_crashes = true;
  bool worker_crashes = true;
  bool pauses = true;
  bool partitions = true;
  bool joins = true;
  bool leaves = true;
  bool lies = true;  ///< suspicions of those that live
  double loss = 0.03;
  double duplicates = 0.05;
};

/// A property does not hold; the text says which.
struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct outcome {
  std::uint64_t pushes = 0;
  std::uint64_t pulls = 0;
  std::uint64_t versions = 0;  ///< of the map
  bool excused = false;        ///< more servers failed than there were copies, and something was lost
};

/// Which push it is: a worker, its incarnation, its sequence for that range.
using push_id = std::tuple<ps::member, std::uint64_t>;

/// The pushes a server has had, in their order. Bulk-synchronous ones are seen from when their clock was folded.
class ledgers final : public ps::range_storage {
 public:
  struct row {
    ps::member from;
    std::uint64_t sequence;
    std::uint64_t clock;
    friend bool operator==(const row&, const row&) = default;
  };
  struct ledger {
    std::vector<row> rows;
    std::vector<row> folded;
    friend bool operator==(const ledger&, const ledger&) = default;
  };

  ledgers(std::size_t ranges, bool bulk) : all_(ranges), bulk_(bulk) {}

  bool accepts(ps::range_id, const ps::message& asked) const override {
    return asked.what != ps::message_kind::push || asked.payload.size() == sizeof(std::uint64_t);
  }
  void apply(ps::range_id range, const ps::log_entry& entry) override {
    ledger& to = all_[range];
    if (entry.what == ps::log_entry::kind::fold) {
      for (const auto& one : to.rows) {
        if (one.clock == entry.clock) to.folded.push_back(one);
      }
      return;
    }
    std::uint64_t sequence = 0;
    std::memcpy(&sequence, entry.payload.data(), sizeof sequence);
    if (sequence != entry.sequence) throw violation("a push has the values of another");
    std::uint64_t before = 0;
    for (const auto& one : to.rows) {
      if (one.from == entry.from) before = one.sequence;
    }
    if (sequence <= before) throw violation("a push is applied twice");
    if (sequence != before + 1) throw violation("a push is applied before an earlier one");
    to.rows.push_back({entry.from, sequence, entry.clock});
    if (entry.what == ps::log_entry::kind::late) to.folded.push_back(to.rows.back());
  }
  std::span<const std::byte> read(ps::range_id range, const ps::message&) override {
    return std::as_bytes(std::span(seen(range)));
  }
  void save(ps::range_id range, std::string& to) const override {
    for (const auto* rows : {&all_[range].rows, &all_[range].folded}) {
      const std::uint64_t count = rows->size();
      to.append(reinterpret_cast<const char*>(&count), sizeof count);
      to.append(reinterpret_cast<const char*>(rows->data()), count * sizeof(row));
    }
  }
  bool load(ps::range_id range, std::span<const std::byte> saved) override {
    ledger read;
    for (auto* rows : {&read.rows, &read.folded}) {
      std::uint64_t count = 0;
      if (saved.size() < sizeof count) return false;
      std::memcpy(&count, saved.data(), sizeof count);
      saved = saved.subspan(sizeof count);
      if (saved.size() < count * sizeof(row)) return false;
      rows->resize(count);
      if (count > 0) std::memcpy(rows->data(), saved.data(), count * sizeof(row));
      saved = saved.subspan(count * sizeof(row));
    }
    all_[range] = std::move(read);
    return saved.empty();
  }
  void reset(ps::range_id range) override { all_[range] = {}; }

  [[nodiscard]] const std::vector<row>& seen(ps::range_id range) const {
    return bulk_ ? all_[range].folded : all_[range].rows;
  }
  [[nodiscard]] const ledger& of(ps::range_id range) const { return all_[range]; }
  [[nodiscard]] std::uint64_t last(ps::range_id range, const ps::member& from) const {
    std::uint64_t last = 0;
    for (const auto& one : all_[range].rows) {
      if (one.from == from) last = one.sequence;
    }
    return last;
  }

 private:
  std::vector<ledger> all_;
  bool bulk_;
};

class run {
 public:
  run(std::uint64_t seed, const world& of) : random_(seed), world_(of) {
    settings_.how = of.how;
    settings_.retry = milliseconds(40);
    settings_.silence = milliseconds(400);
    settings_.worker_silence = milliseconds(400);
    settings_.window = 600;
    settings_.moves_at_once = 1 + random_.below(8);
    std::vector<ps::server_entry> servers;
    std::vector<ps::member> workers;
    for (int i = 0; i < of.servers; ++i)
      servers.push_back({{next_place_++, 1}, 1 + static_cast<std::uint32_t>(random_.below(3))});
    for (int i = 0; i < of.workers; ++i) workers.push_back({next_place_++, 1});
    map_ = ps::first_map(servers, workers, of.ranges, of.replicas);
    for (const auto& one : servers) start_server(one.who, map_);
    for (const auto& one : workers) start_worker(one, false);
    plan_faults();
  }

  /// Faults end after 4 s; at 60 s everything must have settled, however often words were lost and said again.
  outcome finish() {
    const auto end = time{} + milliseconds(60000);
    while (!queue_.empty() && queue_.top().when <= end && !excused_) {
      const auto next = queue_.top();
      queue_.pop();
      now_ = next.when;
      dispatch(next);
      if (settled_) break;
    }
    return settle();
  }

 private:
  struct process {
    ps::member who;
    bool alive = true;
    time paused_until{};
    std::uint64_t cut = 0;  // from the places of these bits
    virtual ~process() = default;
    virtual void hear(std::span<const std::byte> frame) = 0;
    virtual void learn(const ps::shard_map& map) = 0;
    virtual void tick() = 0;
    virtual void swap_failed() {}
  };
  struct server_process final : process, ps::server_outlet {
    run& in;
    ledgers values;
    ps::server core;
    server_process(run& of, ps::member self, const ps::shard_map& map)
        : in(of),
          values(map.ranges.size(), of.world_.how.what == ps::consistency::kind::bulk),
          core((who = self), of.settings_, values, *this, map) {}
    void send(const ps::member& to, const ps::message& what) override { in.send(who, core_map_version(), 0, to, what); }
    // Its first words come before it is made.
    [[nodiscard]] std::uint64_t core_map_version() const { return made ? core.map().version : 1; }
    bool made = false;
    bool leaves = false;
    void swap(std::uint64_t expected, const ps::shard_map& next) override { in.swap(who, expected, next); }
    void look_for_map() override { in.look_for_map(who); }
    void hear(std::span<const std::byte> frame) override {
      core.hear(frame, in.now_);
      if (in.chance(0.7)) core.flush();
    }
    void learn(const ps::shard_map& map) override { core.learn(map, in.now_); }
    void tick() override {
      core.tick(in.now_);
      core.flush();
      if (in.chance(0.01)) look_for_map();  // the store's watch, however late
      if (core.is_fenced()) in.end(*this);
    }
    void swap_failed() override { core.swap_failed(); }
  };
  struct worker_process final : process, ps::worker_outlet {
    run& in;
    bool made = false;
    bool joins;
    ps::worker core;
    int step = 0;
    bool pushes_next = false;
    bool done = false;
    time ready{};
    std::map<std::uint64_t, std::pair<std::uint64_t, time>> asked;  // pulls: the clock, and when
    std::map<std::pair<ps::range_id, std::uint64_t>, std::unique_ptr<std::uint64_t>> memory;
    std::map<std::uint64_t, std::uint64_t> own;  // pulls: of the range's sequence that must be in it
    worker_process(run& of, ps::member self, bool joins_late, const ps::shard_map& map)
        : in(of), joins(joins_late), core((who = self), of.settings_, *this, map, joins_late) {}
    void send(const ps::member& to, const ps::message& what) override {
      in.send(who, made ? core.map().version : 1, made ? core.clock_said() : 0, to, what);
    }
    void look_for_map() override { in.look_for_map(who); }
    void acknowledged(ps::range_id range, std::uint64_t sequence, std::uint32_t) override {
      in.check_acknowledged(who, range, sequence);
      for (auto at = memory.lower_bound({range, 0});
           at != memory.end() && at->first.first == range && at->first.second <= sequence;)
        at = memory.erase(at);
    }
    void answered(std::uint64_t pull, const ps::message& values) override { in.check_answer(*this, pull, values); }
    void hear(std::span<const std::byte> frame) override { core.hear(frame, in.now_); }
    void learn(const ps::shard_map& map) override { core.learn(map, in.now_); }
    void tick() override {
      core.tick(in.now_);
      if (in.chance(0.01)) look_for_map();
      if (core.is_fenced() ? !done || core.has_left() : core.has_left()) in.end(*this);
    }
  };
  struct event {
    time when;
    std::uint64_t order;
    ps::member whose;  // nobody: the world's
    std::shared_ptr<std::function<void(process&)>> what;
    bool operator<(const event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  microseconds draw(int low, int high) {  // milliseconds
    return microseconds(low * 1000 +
                        static_cast<int>(random_.below(static_cast<std::uint64_t>(high - low) * 1000 + 1)));
  }
  bool chance(double p) { return random_.uniform() < p; }
  void at(time when, ps::member whose, std::function<void(process&)> what) {
    queue_.push({when, ++order_, whose, std::make_shared<std::function<void(process&)>>(std::move(what))});
  }
  void after(microseconds delay, ps::member whose, std::function<void(process&)> what) {
    at(now_ + delay, whose, std::move(what));
  }
  process* find(const ps::member& who) {
    const auto found = processes_.find(who);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  }
  server_process* find_server(const ps::member& who) { return dynamic_cast<server_process*>(find(who)); }
  process* find_at(ps::place at) {
    for (auto& [who, one] : processes_) {
      if (who.at == at && one->alive) return one.get();
    }
    return nullptr;
  }
  void dispatch(const event& next) {
    if (next.whose.at == ps::nobody) {
      static struct : process {
        void hear(std::span<const std::byte>) override {}
        void learn(const ps::shard_map&) override {}
        void tick() override {}
      } the_world;
      return (*next.what)(the_world);
    }
    auto* const one = find(next.whose);
    if (one == nullptr) return;
    if (one->paused_until > now_) {
      queue_.push({one->paused_until, ++order_, next.whose, next.what});
      return;
    }
    (*next.what)(*one);
  }

  void start_server(ps::member who, const ps::shard_map& map) {
    auto made = std::make_unique<server_process>(*this, who, map);
    made->made = true;
    processes_[who] = std::move(made);
    tick_later(who);
  }
  void start_worker(ps::member who, bool joins) {
    auto made = std::make_unique<worker_process>(*this, who, joins, map_);
    made->made = true;
    processes_[who] = std::move(made);
    tick_later(who);
    work_later(who, draw(0, 10));
  }
  void tick_later(ps::member who) {
    after(draw(4, 9), who, [this, who](process& one) {
      one.tick();
      tick_later(who);
    });
  }
  void end(process& one) {
    tell(ps::to_string(one.who) + " ends");
    one.alive = false;
  }

  // ---- network ----
  void send(ps::member from, std::uint64_t map_version, std::uint64_t clock, ps::member who, const ps::message& what) {
    const ps::place to = who.at;
    const auto sender = processes_.find(from);
    if (to >= 64 || (sender != processes_.end() && (sender->second->cut >> to & 1) != 0)) return;
    auto* const other = find_at(to);
    if (other == nullptr || chance(world_.loss)) return;
    auto frame =
        std::make_shared<std::vector<std::byte>>(ps::frame_head_bytes + ps::encoded_bytes(what.payload.size()));
    ps::encode(ps::frame_head{from, who.incarnation, map_version, clock},
               std::span(*frame).first<ps::frame_head_bytes>());
    ps::encode(what, frame->data() + ps::frame_head_bytes);
    const int copies = chance(world_.duplicates) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const auto slow = chance(0.05) ? draw(0, 150) : draw(0, 3);
      after(slow, other->who, [frame](process& one) { one.hear(*frame); });
    }
  }

  // ---- the store ----
  void look_for_map(ps::member who) {
    if (!looking_.insert(who).second) return;
    after(draw(1, 20), who, [this, who](process& one) {
      looking_.erase(who);
      one.learn(map_);
    });
  }
  void swap(ps::member who, std::uint64_t expected, const ps::shard_map& next) {
    at(now_ + draw(0, 6), {}, [this, who, expected, next](process&) {
      if (map_.version == expected) {
        if (next.version <= expected) throw violation("a map is not newer than the one before");
        const auto text = next.encode();
        const auto read = ps::shard_map::decode(text);
        if (!read || !(*read == next)) throw violation("a map is not read as it was written");
        map_ = next;
        check_map();
      }
      if (chance(0.05)) {  // the answer is lost
        after(milliseconds(60), who, [](process& one) { one.swap_failed(); });
      } else {
        after(draw(0, 3), who, [this](process& one) { one.learn(map_); });
      }
      for (const auto& [other, its] : processes_) {
        if (its->alive && chance(0.6)) look_for_map(other);
      }
    });
  }

  // ---- what workers do ----
  void work_later(ps::member who, microseconds delay) {
    after(delay, who, [this, who](process& one) {
      auto& self = dynamic_cast<worker_process&>(one);
      work(self);
      if (!self.done) work_later(who, draw(1, 6));
    });
  }
  void work(worker_process& one) {
    auto& core = one.core;
    if (core.is_fenced() || !core.is_ready()) return;
    if (one.ready == time{}) one.ready = now_ + microseconds(1);
    if (core.unanswered() > 0 || core.unacknowledged() > 6) return;
    if (one.step == world_.steps) {
      if (core.unacknowledged() > 0) return;
      one.done = true;
      core.leave();
      return;
    }
    if (!one.pushes_next) {
      one.pushes_next = true;
      for (auto n = 1 + random_.below(3); n > 0; --n) {
        const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
        const bool own = chance(0.5);
        // Folded once all have closed the clock, so a bulk-synchronous pull cannot see what is of this one.
        const bool bulk = world_.how.what == ps::consistency::kind::bulk;
        const auto pull = core.pull(range, {}, own && !bulk, now_);
        one.asked[pull] = {core.clock_now(), now_};
        if (own && !bulk) one.own[pull] = core.pushed(range);
      }
      return;
    }
    one.pushes_next = false;
    for (auto n = random_.below(5); n > 0; --n) {
      const auto range = static_cast<ps::range_id>(random_.below(world_.ranges));
      auto number = std::make_unique<std::uint64_t>(core.pushed(range) + 1);
      const ps::message what{.payload = std::as_bytes(std::span(number.get(), 1))};
      one.memory[{range, *number}] = std::move(number);
      const auto sequence = core.push(range, what, now_);
      clocks_[{range, one.who}].push_back(core.clock_now());
      if (clocks_[{range, one.who}].size() != sequence) throw violation("a sequence was left out");
      ++seen_.pushes;
    }
    core.next_clock();
    ++one.step;
  }

  // ---- faults ----
  process* anybody(bool server) {
    std::vector<process*> living;
    for (const auto& [who, one] : processes_) {
      const bool serves = dynamic_cast<server_process*>(one.get()) != nullptr;
      if (one->alive && serves == server && one->paused_until <= now_) living.push_back(one.get());
    }
    return living.empty() ? nullptr : living[random_.below(living.size())];
  }
  // Whether all that it holds is held by another that lives and is well.
  bool is_spare(const ps::member& who) {
    return std::all_of(map_.ranges.begin(), map_.ranges.end(), [&](const ps::shard_range& range) {
      return std::any_of(range.chain.begin(), range.chain.end(), [&](ps::place at) {
        const auto* const entry = map_.server(at);
        const auto* const other = entry == nullptr ? nullptr : find(entry->who);
        return other != nullptr && !(other->who == who) && other->paused_until <= now_ && other->cut == 0;
      });
    });
  }
  [[nodiscard]] std::size_t staying() const {
    return static_cast<std::size_t>(std::count_if(processes_.begin(), processes_.end(), [&](const auto& entry) {
      const auto* const one = dynamic_cast<const server_process*>(entry.second.get());
      return one != nullptr && one->alive && !one->leaves;
    }));
  }
  void plan_faults() {
    const auto count = 1 + random_.below(static_cast<std::uint64_t>(world_.faults));
    microseconds last{0};
    for (std::uint64_t i = 0; i < count; ++i) {
      // Many at nearly the same time: what matters is what happens during a recovery.
      const auto when = i > 0 && chance(0.5) ? last + draw(0, 80) : draw(20, 1500);
      last = when;
      at(time{} + when, {}, [this](process&) { one_fault(); });
    }
    at(time{} + milliseconds(3500), {}, [this](process&) {
      for (auto& [who, one] : processes_) one->cut = 0;
    });
    look_whether_settled(time{} + last + milliseconds(400));
  }
  // Nothing more happens when all is as it must be in the end: that need not be simulated.
  void look_whether_settled(time when) {
    at(when, {}, [this](process&) {
      const bool well = std::all_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
        const auto& one = *entry.second;
        return !one.alive || (one.cut == 0 && one.paused_until <= now_);
      });
      try {
        if (well) (void)settle();
        settled_ = well;
      } catch (const violation&) {  // not yet
      }
      if (!settled_) look_whether_settled(now_ + milliseconds(150));
    });
  }
  void one_fault() {
    const auto kind = random_.below(9);
    if (kind <= 1 && world_.server_crashes) {
      if (auto* const one = anybody(true); one != nullptr && is_spare(one->who)) crash(*one);
    } else if (kind == 2 && world_.worker_crashes) {
      if (auto* const one = anybody(false)) crash(*one);
    } else if (kind == 3 && world_.pauses) {
      auto* const one = anybody(chance(0.7));
      if (one == nullptr || (is_server(*one) && !is_spare(one->who))) return;
      if (is_server(*one)) ++server_faults_;
      one->paused_until = now_ + draw(20, 1500);
      tell(ps::to_string(one->who) + " stands still");
    } else if (kind == 4 && world_.partitions) {
      auto* const one = anybody(chance(0.7));
      if (one == nullptr || (is_server(*one) && !is_spare(one->who))) return;
      ++server_faults_;
      one->cut = random_();
      tell(ps::to_string(one->who) + " does not reach some");
      after(draw(30, 1500), one->who, [](process& its) { its.cut = 0; });
    } else if (kind == 5 && world_.joins) {
      chance(0.5) ? join_server() : join_worker();
    } else if (kind == 6 && world_.leaves) {
      if (auto* const one = anybody(true); one != nullptr && staying() > 1 + world_.replicas) {
        tell(ps::to_string(one->who) + " wants to leave");
        dynamic_cast<server_process&>(*one).leaves = true;
        dynamic_cast<server_process&>(*one).core.leave();
      }
    } else if (kind == 7 && world_.lies) {
      auto* const one = anybody(true);
      auto* const about = anybody(chance(0.7));
      if (one == nullptr || about == nullptr || one == about) return;
      if (is_server(*about)) ++server_faults_;
      tell(ps::to_string(one->who) + " suspects " + ps::to_string(about->who));
      dynamic_cast<server_process&>(*one).core.suspect(about->who, false);
    } else if (kind == 8) {
      join_server();
    }
  }
  static bool is_server(const process& one) { return dynamic_cast<const server_process*>(&one) != nullptr; }
  void crash(process& one) {
    tell(ps::to_string(one.who) + " dies");
    one.alive = false;
    if (is_server(one)) ++server_faults_;
    const auto who = one.who;
    if (chance(0.7)) {  // its end is seen; else it is only silent
      for (const auto& [other, its] : processes_) {
        if (!its->alive || !is_server(*its)) continue;
        after(draw(0, 5), other, [who](process& at) { dynamic_cast<server_process&>(at).core.suspect(who, true); });
      }
    }
    if (!is_server(one) && chance(0.5))
      at(now_ + draw(0, 300), {}, [this, who](process&) { begin_worker({who.at, who.incarnation + 1}); });
    if (is_server(one) && chance(0.5))
      at(now_ + draw(0, 300), {}, [this, who](process&) { begin_server({who.at, who.incarnation + 1}); });
  }
  void join_server() {
    if (next_place_ < 60) begin_server({next_place_++, 1});
  }
  void join_worker() {
    if (next_place_ < 60) begin_worker({next_place_++, 1});
  }
  // Whoever starts writes itself into the store's map first.
  void begin_server(ps::member who) {
    if (find_at(who.at) != nullptr) return;
    const auto* const before = map_.server(who.at);
    if (before != nullptr && !is_spare(before->who)) return;
    tell("server " + ps::to_string(who) + " starts");
    map_ = ps::with_server(map_, {who, 1});
    check_map();
    start_server(who, map_);
  }
  void begin_worker(ps::member who) {
    if (find_at(who.at) != nullptr) return;
    tell("worker " + ps::to_string(who) + " starts");
    map_ = ps::with_worker(map_, who);
    start_worker(who, true);
  }

  // ---- what must hold ----
  void tell(const std::string& line) const {
    if (!traced_) return;
    std::printf("%8.3f ms  %s\n", std::chrono::duration<double, std::milli>(now_.time_since_epoch()).count(),
                line.c_str());
  }
  void check_map() {
    if (traced_) {
      tell(map_.describe());
      for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
        const auto& range = map_.ranges[id];
        std::string line = "range " + std::to_string(id) + ", epoch " + std::to_string(range.epoch) + ":";
        for (const auto at : range.chain) line += " " + std::to_string(at);
        if (range.learner != ps::nobody) line += ", learns " + std::to_string(range.learner);
        if (range.leaver != ps::nobody) line += ", leaves " + std::to_string(range.leaver);
        tell(line);
      }
    }
    for (const auto& range : map_.ranges) {
      const bool held = std::any_of(range.chain.begin(), range.chain.end(), [&](ps::place at) {
        const auto* const entry = map_.server(at);
        return entry != nullptr && find(entry->who) != nullptr;
      });
      if (held) continue;
      if (server_faults_ <= world_.replicas) throw violation("a range is lost, though no more servers failed than may");
      excused_ = true;
    }
  }
  // What a worker is told to count is at every server that the map gives the range to.
  void check_acknowledged(const ps::member& who, ps::range_id id, std::uint64_t sequence) {
    for (const auto at : map_.ranges[id].chain) {
      const auto* const entry = map_.server(at);
      const auto* const one = entry == nullptr ? nullptr : find_server(entry->who);
      if (one != nullptr && one->values.last(id, who) < sequence)
        throw violation("push " + std::to_string(sequence) + " of worker " + ps::to_string(who) + " to range " +
                        std::to_string(id) + " is acknowledged, but not at server " + ps::to_string(one->who) +
                        ", which has " + std::to_string(one->values.last(id, who)) + " (" + one->core.describe(id) +
                        ")");
    }
    acknowledged_[{id, who}] = sequence;
  }
  void check_answer(worker_process& one, std::uint64_t pull, const ps::message& values) {
    ++seen_.pulls;
    const auto [clock, when] = one.asked.at(pull);
    one.asked.erase(pull);
    std::vector<ledgers::row> rows(values.payload.size() / sizeof(ledgers::row));
    if (!rows.empty()) std::memcpy(rows.data(), values.payload.data(), values.payload.size());
    std::map<ps::member, std::uint64_t> seen;
    for (const auto& row : rows) seen[row.from] = std::max(seen[row.from], row.sequence);
    if (const auto own = one.own.find(pull); own != one.own.end()) {
      if (seen[one.who] < own->second) throw violation("a pull misses a push of its own worker");
      one.own.erase(own);
    }
    if (world_.how.what == ps::consistency::kind::asynchronous) return;
    const std::uint64_t bound = world_.how.what == ps::consistency::kind::bulk ? 0 : world_.how.bound;
    for (const auto& [who, its] : processes_) {
      const auto* const other = dynamic_cast<const worker_process*>(its.get());
      if (other == nullptr || !other->alive || !map_.has_worker(who)) continue;
      if (other->ready == time{} || other->ready >= when) continue;
      if (other->core.clock_now() + bound < clock) throw violation("a worker is further ahead than the bound");
      const auto found = clocks_.find({values.range, who});
      if (found == clocks_.end()) continue;
      std::uint64_t due = 0;  // pushes of clocks that must have been seen
      while (due < found->second.size() && found->second[due] + bound < clock) ++due;
      if (seen[who] < due) {
        throw violation("a pull by worker " + ps::to_string(one.who) + " of range " + std::to_string(values.range) +
                        " at clock " + std::to_string(clock) + ", asked at " +
                        std::to_string(std::chrono::duration<double, std::milli>(when.time_since_epoch()).count()) +
                        " ms, has " + std::to_string(seen[who]) + " pushes of worker " + ps::to_string(who) +
                        " and must have " + std::to_string(due) + ", the bound is " + std::to_string(bound) +
                        ", its clock " + std::to_string(other->core.clock_now()));
      }
    }
  }
  outcome settle() {
    seen_.versions = map_.version;
    seen_.excused = excused_;
    if (excused_) return seen_;
    for (const auto& [who, one] : processes_) {
      const auto* const worker = dynamic_cast<const worker_process*>(one.get());
      if (worker == nullptr || !worker->alive) continue;
      if (traced_) {
        for (const auto& [at, its] : processes_) {
          if (const auto* const server = dynamic_cast<const server_process*>(its.get());
              server != nullptr && its->alive)
            tell("server " + ps::to_string(at) + ": map " + std::to_string(server->core.map().version) + ", slowest " +
                 std::to_string(server->core.clocks().slowest()) + ", pulls that wait " +
                 std::to_string(server->core.waiting()));
        }
        for (const auto& known : map_.workers) tell("the map has worker " + ps::to_string(known));
        for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
          if (worker->core.counted(id) == worker->core.pushed(id)) continue;
          for (const auto& [at, its] : processes_) {
            if (const auto* const server = dynamic_cast<const server_process*>(its.get()); server && its->alive)
              tell("range " + std::to_string(id) + " at " + ps::to_string(at) + ": " + server->core.describe(id));
          }
          std::string chain;
          for (const auto at : map_.ranges[id].chain) {
            const auto* const server = find_server(map_.server(at)->who);
            chain += " " + std::to_string(at);
            if (server != nullptr)
              chain +=
                  ":" + std::to_string(server->values.last(id, who)) + "/" + std::to_string(server->core.version(id));
          }
          tell("range " + std::to_string(id) + " pushed " + std::to_string(worker->core.pushed(id)) + " counted " +
               std::to_string(worker->core.counted(id)) + " chain" + chain + " learner " +
               std::to_string(map_.ranges[id].learner));
        }
        tell("worker " + ps::to_string(who) + ": map " + std::to_string(worker->core.map().version) + ", clock " +
             std::to_string(worker->core.clock_now()) + ", said " + std::to_string(worker->core.clock_said()));
      }
      throw violation("worker " + ps::to_string(who) + " is not at its end (step " + std::to_string(worker->step) +
                      ", " + std::to_string(worker->core.unacknowledged()) + " pushes not acknowledged, " +
                      std::to_string(worker->core.unanswered()) + " pulls not answered)");
    }
    if (map_.servers.empty()) throw violation("no server is left");
    const auto copies = std::min<std::size_t>(world_.replicas + 1, map_.servers.size());
    for (ps::range_id id = 0; id < map_.ranges.size(); ++id) {
      const auto& range = map_.ranges[id];
      if (range.chain.size() != copies || range.learner != ps::nobody || range.leaver != ps::nobody)
        throw violation("a range does not have its copies again");
      const auto* const head = find_server(map_.server(range.head())->who);
      if (head == nullptr || !head->core.serves(id)) throw violation("a range is served by nobody");
      for (const auto at : range.chain) {
        const auto* const other = find_server(map_.server(at)->who);
        if (other == nullptr || !(other->values.of(id) == head->values.of(id)))
          throw violation("two copies of a range differ");
      }
      for (const auto& [key, sequence] : acknowledged_) {
        if (key.first == id && head->values.last(id, key.second) < sequence)
          throw violation("an acknowledged push is lost");
      }
    }
    return seen_;
  }

  muster::random_stream random_;
  world world_;
  ps::protocol_settings settings_;
  time now_{};
  bool settled_ = false;
  std::uint64_t order_ = 0;
  ps::place next_place_ = 0;
  std::priority_queue<event> queue_;
  ps::shard_map map_;  // the store's
  std::map<ps::member, std::unique_ptr<process>> processes_;
  std::set<ps::member> looking_;
  std::map<std::pair<ps::range_id, ps::member>, std::vector<std::uint64_t>> clocks_;  // of each push, by sequence
  std::map<std::pair<ps::range_id, ps::member>, std::uint64_t> acknowledged_;
  outcome seen_;
  std::uint32_t server_faults_ = 0;
  bool excused_ = false;
  bool traced_ = std::getenv("MUSTER_TEST_TRACE") != nullptr;  // with one seed: what happened
};

}  // namespace simulation
