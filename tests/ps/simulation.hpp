// The protocol of the parameter server over a simulated clock, network and store: one thread, everything drawn from a
// seed. Its network and store are in simulated_network.hpp, what workers do in simulated_work.hpp, what happens to it
// in simulated_faults.hpp, what is whole afterwards in simulated_healing.hpp, what must hold in simulated_checks.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <muster/core/random.hpp>
#include "ps/protocol/server.hpp"
#include "ps/protocol/worker.hpp"

#include "simulated_values.hpp"

namespace simulation {

using time = muster::clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;

class run {
 public:
  run(std::uint64_t seed, const world& of) : random_(seed), world_(of) {
    settings_.how = of.how;
    settings_.retry = milliseconds(40);
    settings_.silence = milliseconds(400);
    settings_.worker_silence = milliseconds(400);
    settings_.window = 600;
    settings_.moves_at_once = 1 + random_.below(8);
    // Where a fifth of all messages is lost, all pieces of a copy hardly ever come.
    settings_.copy_piece = of.loss > 0.1 ? ps::most_payload : std::size_t{256} << random_.below(8);
    std::vector<ps::server_entry> servers;
    std::vector<ps::member> workers;
    for (int i = 0; i < of.servers; ++i) servers.push_back({{next_place_++, 1}});
    for (int i = 0; i < of.workers; ++i) workers.push_back({next_place_++, 1});
    map_ = ps::first_map(servers, workers, of.ranges + (of.leases ? 1 : 0), of.replicas);
    for (const auto& one : servers) start_server(one.node, map_);
    for (const auto& one : workers) start_worker(one);
    plan_faults();
  }

  /// Faults end after 4 s; at 60 s everything must have settled, however often words were lost and repeated.
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
    ps::member node;
    bool alive = true;
    time paused_until{};
    std::vector<std::shared_ptr<std::function<void(process&)>>> held;  // what came meanwhile
    std::uint64_t cut = 0;                                             // from the places of these bits
    std::uint64_t broken = 0;                                          // the same for good
    std::uint64_t left_cut = 0;                                        // the same, when others are whole
    std::uint64_t links = 0;                                           // the number of the connections in use
    [[nodiscard]] bool is_cut_from(ps::node_id to) const { return ((cut | broken | left_cut) >> to & 1) != 0; }
    virtual ~process() = default;
    virtual void hear(std::span<const std::byte> frame, std::span<const std::byte> apart) = 0;
    virtual void learn(const ps::shard_map& map) = 0;
    virtual void tick() = 0;
    virtual void swap_failed() {}
    virtual void send_again() {}
  };
  struct server_process final : process, ps::server_outlet {
    run& in;
    bool made = false;
    ledgers values;
    ps::server core;
    server_process(run& of, ps::member self, const ps::shard_map& map)
        : in(of),
          values(map.ranges.size(), of.world_.how.what == ps::consistency::kind::bulk, of.world_.leases),
          core((node = self), of.settings_, values, *this, map) {}
    void send(const ps::member& to, const ps::message& what) override {
      in.send(node, core_map_version(), 0, to, what);
    }
    // Its first words come before it is made.
    [[nodiscard]] std::uint64_t core_map_version() const { return made ? core.newest_map() : 1; }
    void swap(std::uint64_t expected, const ps::shard_map& next) override { in.swap(node, expected, next); }
    void hear(std::span<const std::byte> frame, std::span<const std::byte> apart) override {
      core.hear(frame, in.now_, apart);
      if (in.chance(0.7)) core.flush();
    }
    void learn(const ps::shard_map& map) override { core.learn(map, in.now_); }
    void tick() override {
      core.tick(in.now_);
      core.flush();
      if (in.chance(0.02)) in.look_for_map(node);  // the store's watch, however late
      if (core.is_fenced()) in.end(*this);
    }
    void swap_failed() override { core.swap_failed(); }
    void send_again() override { core.send_again(); }
  };
  // Of a worker that gets its batches from the servers.
  struct leased_work {
    std::optional<ps::lease> held;
    std::uint64_t batch = 0;  // of it
    bool has_looked = false;
    bool is_over = false;
    bool joins = false;  // its clock is not that of the others yet
  };
  struct worker_process final : process, ps::worker_outlet {
    run& in;
    bool made = false;
    ps::worker core;
    int step = 0;
    int steps = in.world_.steps;
    bool pushes_next = false;
    bool done = false;
    leased_work leased;
    std::map<std::uint64_t, std::pair<std::uint64_t, time>> asked;  // pulls: the clock, and when
    std::map<std::pair<ps::range_id, std::uint64_t>, std::unique_ptr<std::uint64_t>> memory;
    std::map<std::uint64_t, std::uint64_t> own;  // pulls: of the range's sequence that must be in it
    worker_process(run& of, ps::member self, const ps::shard_map& map)
        : in(of), core((node = self), of.settings_, *this, map) {}
    void send(const ps::member& to, const ps::message& what) override {
      in.send(node, made ? core.newest_map() : 1, made ? core.clock_said() : 0, to, what);
    }
    void acknowledged(ps::range_id range, std::uint64_t sequence, std::uint32_t) override {
      in.check_acknowledged(node, range, sequence);
      for (auto at = memory.lower_bound({range, 0});
           at != memory.end() && at->first.first == range && at->first.second <= sequence;)
        at = memory.erase(at);
    }
    void answered(std::uint64_t pull, const ps::message& values) override { in.check_answer(*this, pull, values); }
    void refused(std::string_view why) override { throw violation(std::string(why)); }
    void hear(std::span<const std::byte> frame, std::span<const std::byte> apart) override {
      core.hear(frame, in.now_, apart);
    }
    void learn(const ps::shard_map& map) override { core.learn(map, in.now_); }
    void send_again() override { core.send_again(in.now_); }
    void tick() override {
      core.tick(in.now_);
      if (in.chance(0.02)) in.look_for_map(node);
      if (const auto next = core.without_the_last(in.now_)) in.swap(node, core.map().version, *next);
      if (core.is_fenced() ? !done || core.has_left() : core.has_left()) in.end(*this);
    }
  };
  struct event {
    time when;
    std::uint64_t order;
    ps::member whose;  // none: the world's
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
  [[nodiscard]] process* find(const ps::member& node) const {
    const auto found = processes_.find(node);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  }
  server_process* find_server(const ps::member& node) { return dynamic_cast<server_process*>(find(node)); }
  process* find_at(ps::node_id at) {
    for (auto& [node, one] : processes_) {
      if (node.at == at && one->alive) return one.get();
    }
    return nullptr;
  }
  void dispatch(const event& next) {
    if (next.whose.at == ps::no_node) {
      static struct : process {
        void hear(std::span<const std::byte>, std::span<const std::byte>) override {}
        void learn(const ps::shard_map&) override {}
        void tick() override {}
      } the_world;
      return (*next.what)(the_world);
    }
    auto* const one = find(next.whose);
    if (one == nullptr) return;
    if (one->paused_until > now_) return one->held.push_back(next.what);
    (*next.what)(*one);
  }

  void pause(process& one, time until) {
    one.paused_until = until;
    at(until, {}, [this, node = one.node](process&) {
      if (auto* const its = find(node); its != nullptr && its->paused_until <= now_) wake(*its);
    });
    tell(ps::to_string(one.node) + " stands still");
  }
  void wake(process& one) {
    one.paused_until = now_;
    for (auto& what : std::exchange(one.held, {})) queue_.push({now_, ++order_, one.node, std::move(what)});
  }

  void start_server(ps::member node, const ps::shard_map& map) {
    can_serve_.insert(node.at);
    auto made = std::make_unique<server_process>(*this, node, map);
    made->made = true;
    made->links = links_;
    processes_[node] = std::move(made);
    tick_later(node);
  }
  void start_worker(ps::member node) {
    auto made = std::make_unique<worker_process>(*this, node, map_);
    made->made = true;
    made->links = links_;
    processes_[node] = std::move(made);
    tick_later(node);
    work_later(node, draw(0, 10));
  }
  void tick_later(ps::member node) {
    after(draw(4, 9), node, [this, node](process& one) {
      one.tick();
      tick_later(node);
    });
  }
  void end(process& one) {
    tell(ps::to_string(one.node) + " ends");
    one.alive = false;
  }

  // ---- network ----
  void send(ps::member from, std::uint64_t map_version, std::uint64_t clock, ps::member node, const ps::message& what);
  // What comes over connections that its receiver has left is lost; over newer ones than it uses it waits for it.
  void arrive_later(microseconds delay, ps::member node, std::uint64_t links,
                    const std::function<void(process&)>& arrive);
  // All go over to new connections, one after another.
  void change_links();

  // ---- the store ----
  void look_for_map(ps::member node);
  void swap(ps::member node, std::uint64_t expected, const ps::shard_map& next);

  // ---- what workers do ----
  void work_later(ps::member node, microseconds delay);
  void work(worker_process& one);

  // ---- what workers do that get their batches from servers ----
  void work_by_leases(worker_process& one);
  void claim(worker_process& one, ps::order_word what, std::uint64_t place, std::span<const std::byte> payload);
  void take_lease(worker_process& one, const ps::lease& told);
  void train_leased(worker_process& one);
  void join_worker();
  [[nodiscard]] ps::range_id order_range() const { return static_cast<ps::range_id>(world_.ranges); }
  // Whether that server has what a worker pushed.
  [[nodiscard]] bool has(const server_process& one, const ps::member& node, ps::range_id id,
                         std::uint64_t sequence) const;
  void check_order();

  // ---- faults ----
  process* anybody(bool server);
  // Whether all that it holds is held by another that lives and is well.
  bool is_spare(const ps::member& node);
  void plan_faults();
  // Nothing more happens when all is as it must be in the end: that need not be simulated.
  void look_whether_settled(time when);
  void one_fault();
  static bool is_server(const process& one) { return dynamic_cast<const server_process*>(&one) != nullptr; }
  void crash(process& one);
  // One that stands by takes the place of a server that has died; where none has, one server more is wanted.
  void join_server();
  // More servers are wanted, or fewer.
  void scale();
  void scale_to(std::size_t wanted);
  [[nodiscard]] std::vector<ps::node_id> candidates() const;
  // Those that a map names begin when they see that, some time later.
  void name(const ps::shard_map& next);
  void begin_named(ps::member node);

  // ---- the end of faults ----
  [[nodiscard]] bool hold_all(const std::set<ps::member>& whole) const;
  void heal_a_quorum();
  void leave_faulty(process& one);
  void await_progress();
  void heal_the_rest();

  // ---- what must hold ----
  void tell(const std::string& line) const;
  void check_map();
  // What a worker is told to count is at every server that the map gives the range to.
  void check_acknowledged(const ps::member& node, ps::range_id id, std::uint64_t sequence);
  // Nor is what was read lost with any of them.
  void check_everywhere(const ps::member& node, ps::range_id id, std::uint64_t sequence, const char* what);
  void check_answer(worker_process& one, std::uint64_t pull, const ps::message& values);
  outcome settle();

  muster::random_stream random_;
  // From then on nothing is lost. A lost copy is sent again after twice as long each time: where a fifth of all
  // messages is lost, eight in a row were, once in 80,000 runs, and the end came before the ninth.
  static constexpr time::duration whole_again = milliseconds(20000);

  world world_;
  ps::protocol_settings settings_;
  time now_{};
  bool settled_ = false;
  std::uint64_t order_ = 0;
  ps::node_id next_place_ = 0;
  std::uint64_t links_ = 0;
  std::set<ps::node_id> can_serve_;
  std::priority_queue<event> queue_;
  ps::shard_map map_;  // the store's
  std::map<ps::member, std::unique_ptr<process>> processes_;
  std::set<ps::member> looking_;
  std::map<std::pair<ps::range_id, ps::member>, std::vector<std::uint64_t>> clocks_;  // of each push, by sequence
  std::map<std::pair<ps::range_id, ps::member>, std::vector<std::uint64_t>> places_;  // the same
  std::map<std::pair<ps::range_id, ps::member>, std::uint64_t> acknowledged_;
  std::map<std::uint64_t, std::pair<ps::lease, std::uint64_t>> trained_;  // by place: the batch of a lease
  bool over_ = false;
  int swaps_under_way_ = 0;
  std::set<ps::member> whole_;               // since the faults ended
  std::map<ps::member, int> must_progress_;  // of these the workers, and to which step
  std::vector<process*> left_faulty_;
  std::uint64_t waited_ = 0;  // turns
  outcome seen_;
  std::uint32_t server_faults_ = 0;
  bool excused_ = false;
  bool traced_ = std::getenv("MUSTER_TEST_TRACE") != nullptr;  // with one seed: what happened
};

}  // namespace simulation
