// The parameter server's protocol over a simulated clock, network and store: one thread, with all choices drawn from a
// seed. The network and the store are in simulated_network.hpp, the workers' behaviour in simulated_work.hpp, the
// faults in simulated_faults.hpp, the end of the faults in simulated_healing.hpp, and the invariants in
// simulated_checks.hpp.
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
#include <muster/ps/protocol/server_protocol.hpp>
#include <muster/ps/protocol/worker.hpp>

#include "simulated_values.hpp"

namespace simulation {

using time = muster::clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;

class run {
 public:
  run(std::uint64_t seed, const world& options) : random_(seed), world_(options) {
    settings_.model = options.model;
    settings_.retry = milliseconds(40);
    settings_.detection_silence = milliseconds(400);
    settings_.worker_silence = milliseconds(400);
    settings_.most_learner_lag = 600;
    settings_.moves_at_once = 1 + random_.below(8);
    // If a fifth of the messages is lost, the pieces of a copy hardly ever all arrive.
    settings_.copy_piece = options.loss > 0.1 ? ps::most_payload : std::size_t{256} << random_.below(8);
    std::vector<ps::server_entry> servers;
    std::vector<ps::member> workers;
    for (int i = 0; i < options.servers; ++i) servers.push_back({{next_place_++, 1}});
    for (int i = 0; i < options.workers; ++i) workers.push_back({next_place_++, 1});
    map_ = ps::first_map(servers, workers, options.ranges + (options.leases ? 1 : 0), options.replicas);
    for (const auto& server : servers) start_server(server.node, map_);
    for (const auto& worker : workers) start_worker(worker);
    plan_faults();
  }

  /// Faults end after 4 s. At 60 s everything must have settled, however often messages were lost and repeated.
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
    // Messages and timers that were due during a pause.
    std::vector<std::shared_ptr<std::function<void(process&)>>> delayed;
    std::uint64_t cut = 0;       // bit set of places whose messages are lost
    std::uint64_t broken = 0;    // the same, for ever
    std::uint64_t left_cut = 0;  // the same, after the other processes are healed
    std::uint64_t links = 0;     // number of the connections in use
    [[nodiscard]] bool is_cut_from(ps::node_id place) const { return ((cut | broken | left_cut) >> place & 1) != 0; }
    virtual ~process() = default;
    virtual void on_frame(std::span<const std::byte> frame, std::span<const std::byte> payload) = 0;
    virtual void apply_map(const ps::shard_map& map) = 0;
    virtual void tick() = 0;
    virtual void swap_failed() {}
    virtual void send_again() {}
  };
  struct server_process final : process, ps::server_output {
    run& owner;
    bool is_constructed = false;
    ledgers values;
    ps::server core;
    server_process(run& simulation_run, ps::member self, const ps::shard_map& map)
        : owner(simulation_run),
          values(map.ranges.size(), simulation_run.world_.model.type == ps::consistency::kind::bulk,
                 simulation_run.world_.leases),
          core((node = self), simulation_run.settings_, values, *this, map) {}
    void send(const ps::member& receiver, const ps::message& msg) override {
      owner.send(node, core_map_version(), 0, receiver, msg);
    }
    // The first messages are sent before the constructor has finished.
    [[nodiscard]] std::uint64_t core_map_version() const { return is_constructed ? core.newest_map() : 1; }
    void swap(std::uint64_t expected, const ps::shard_map& next) override { owner.swap(node, expected, next); }
    void on_frame(std::span<const std::byte> frame, std::span<const std::byte> payload) override {
      core.on_frame(frame, owner.now_, payload);
      if (owner.chance(0.7)) core.send_due_replies();
    }
    void apply_map(const ps::shard_map& map) override { core.apply_map(map, owner.now_); }
    void tick() override {
      core.tick(owner.now_);
      core.send_due_replies();
      if (owner.chance(0.02)) owner.look_for_map(node);  // the store's watch, with any delay
      if (core.is_fenced()) owner.end(*this);
    }
    void swap_failed() override { core.swap_failed(); }
    void send_again() override { core.send_again(); }
  };
  // A worker that gets its batches from the servers.
  struct leased_work {
    std::optional<ps::lease> held;
    std::uint64_t batch = 0;  // index of the batch in `held`
    bool has_looked = false;
    bool is_over = false;
    bool joins = false;  // its clock has not reached the clock of the other workers yet
  };
  struct worker_process final : process, ps::worker_output {
    run& owner;
    bool is_constructed = false;
    ps::worker core;
    int step = 0;
    int steps = owner.world_.steps;
    bool pushes_next = false;
    bool done = false;
    leased_work leased;
    // For each pull: the clock and the time of the request.
    std::map<std::uint64_t, std::pair<std::uint64_t, time>> pulls;
    std::map<std::pair<ps::range_id, std::uint64_t>, std::unique_ptr<std::uint64_t>> memory;
    // For each pull: the sequence of the worker's own pushes that the values must include.
    std::map<std::uint64_t, std::uint64_t> own;
    worker_process(run& simulation_run, ps::member self, const ps::shard_map& map)
        : owner(simulation_run), core((node = self), simulation_run.settings_, *this, map) {}
    void send(const ps::member& receiver, const ps::message& msg) override {
      owner.send(node, is_constructed ? core.newest_map() : 1, is_constructed ? core.reported_clock() : 0, receiver,
                 msg);
    }
    void on_acknowledged(ps::range_id range, std::uint64_t sequence, std::uint32_t) override {
      owner.check_acknowledged(node, range, sequence);
      for (auto at = memory.lower_bound({range, 0});
           at != memory.end() && at->first.first == range && at->first.second <= sequence;)
        at = memory.erase(at);
    }
    void on_values(std::uint64_t pull, const ps::message& values) override { owner.check_answer(*this, pull, values); }
    void on_refused(std::string_view why) override { throw violation(std::string(why)); }
    void on_frame(std::span<const std::byte> frame, std::span<const std::byte> payload) override {
      core.on_frame(frame, owner.now_, payload);
    }
    void apply_map(const ps::shard_map& map) override { core.apply_map(map, owner.now_); }
    void send_again() override { core.send_again(owner.now_); }
    void tick() override {
      core.tick(owner.now_);
      if (owner.chance(0.02)) owner.look_for_map(node);
      if (const auto next = core.without_lost_holders(owner.now_)) owner.swap(node, core.map().version, *next);
      if (core.is_fenced() ? !done || core.has_left() : core.has_left()) owner.end(*this);
    }
  };
  struct event {
    time when;
    std::uint64_t order;
    ps::member target;  // none: the event is not for a process
    std::shared_ptr<std::function<void(process&)>> action;
    bool operator<(const event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  microseconds draw(int low, int high) {  // in milliseconds
    return microseconds(low * 1000 +
                        static_cast<int>(random_.below(static_cast<std::uint64_t>(high - low) * 1000 + 1)));
  }
  bool chance(double p) { return random_.uniform() < p; }
  void schedule(time when, ps::member target, std::function<void(process&)> action) {
    queue_.push({when, ++order_, target, std::make_shared<std::function<void(process&)>>(std::move(action))});
  }
  void after(microseconds delay, ps::member target, std::function<void(process&)> action) {
    schedule(now_ + delay, target, std::move(action));
  }
  [[nodiscard]] process* find(const ps::member& node) const {
    const auto found = processes_.find(node);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  }
  server_process* find_server(const ps::member& node) { return dynamic_cast<server_process*>(find(node)); }
  process* find_at(ps::node_id at) {
    for (auto& [node, each] : processes_) {
      if (node.place == at && each->alive) return each.get();
    }
    return nullptr;
  }
  void dispatch(const event& next) {
    if (next.target.place == ps::no_node) {
      static struct : process {
        void on_frame(std::span<const std::byte>, std::span<const std::byte>) override {}
        void apply_map(const ps::shard_map&) override {}
        void tick() override {}
      } nobody;
      return (*next.action)(nobody);
    }
    auto* const receiver = find(next.target);
    if (receiver == nullptr) return;
    if (receiver->paused_until > now_) return receiver->delayed.push_back(next.action);
    (*next.action)(*receiver);
  }

  void pause(process& paused, time until) {
    paused.paused_until = until;
    schedule(until, {}, [this, node = paused.node](process&) {
      if (auto* const sleeper = find(node); sleeper != nullptr && sleeper->paused_until <= now_) wake(*sleeper);
    });
    trace(ps::to_string(paused.node) + " stands still");
  }
  void wake(process& paused) {
    paused.paused_until = now_;
    for (auto& action : std::exchange(paused.delayed, {}))
      queue_.push({now_, ++order_, paused.node, std::move(action)});
  }

  void start_server(ps::member node, const ps::shard_map& map) {
    can_serve_.insert(node.place);
    auto started = std::make_unique<server_process>(*this, node, map);
    started->is_constructed = true;
    started->links = links_;
    processes_[node] = std::move(started);
    tick_later(node);
  }
  void start_worker(ps::member node) {
    auto started = std::make_unique<worker_process>(*this, node, map_);
    started->is_constructed = true;
    started->links = links_;
    processes_[node] = std::move(started);
    tick_later(node);
    work_later(node, draw(0, 10));
  }
  void tick_later(ps::member node) {
    after(draw(4, 9), node, [this, node](process& self) {
      self.tick();
      tick_later(node);
    });
  }
  void end(process& ended) {
    trace(ps::to_string(ended.node) + " ends");
    ended.alive = false;
  }

  // ---- network ----
  void send(ps::member sender, std::uint64_t map_version, std::uint64_t clock, ps::member node, const ps::message& msg);
  // A message over connections that the receiver has left is lost. Over newer connections than the receiver uses, it
  // waits.
  void arrive_later(microseconds delay, ps::member node, std::uint64_t links,
                    const std::function<void(process&)>& arrive);
  // All processes change to new connections, one after another.
  void change_links();

  // ---- the store ----
  void look_for_map(ps::member node);
  void swap(ps::member node, std::uint64_t expected, const ps::shard_map& next);

  // ---- behaviour of workers ----
  void work_later(ps::member node, microseconds delay);
  void work(worker_process& self);

  // ---- behaviour of workers with batches from servers ----
  void work_by_leases(worker_process& self);
  void claim(worker_process& self, ps::order_request request, std::uint64_t place, std::span<const std::byte> payload);
  void take_lease(worker_process& self, const ps::lease& granted);
  void train_leased(worker_process& self);
  void join_worker();
  [[nodiscard]] ps::range_id order_range() const { return static_cast<ps::range_id>(world_.ranges); }
  // Returns true if that server has applied a worker's push.
  [[nodiscard]] bool has(const server_process& server, const ps::member& node, ps::range_id id,
                         std::uint64_t sequence) const;
  void check_order();

  // ---- faults ----
  process* draw_process(bool server);
  // Returns true if another live and healthy server holds every range that this server holds.
  bool is_spare(const ps::member& node);
  void plan_faults();
  // Ends the run early if the final state is reached: nothing more would happen.
  void end_if_settled(time when);
  void inject_fault();
  static bool is_server(const process& candidate) { return dynamic_cast<const server_process*>(&candidate) != nullptr; }
  void crash(process& victim);
  // A hot spare replaces a dead server. If no server has died, one more server is requested.
  void join_server();
  // Requests more servers, or fewer.
  void scale();
  void scale_to(std::size_t count);
  [[nodiscard]] std::vector<ps::node_id> candidates() const;
  // Servers that a map adds start when they see the map, some time later.
  void publish(const ps::shard_map& next);
  void start_added(ps::member node);

  // ---- the end of faults ----
  [[nodiscard]] bool hold_all(const std::set<ps::member>& whole) const;
  void heal_a_quorum();
  void leave_faulty(process& faulty);
  void await_progress();
  void heal_the_rest();

  // ---- what must hold ----
  void trace(const std::string& line) const;
  void check_map();
  // Checks that an acknowledged push is at every server of the range's chain.
  void check_acknowledged(const ps::member& node, ps::range_id id, std::uint64_t sequence);
  // Checks that a push that was read or acknowledged is at every server of the chain.
  void check_everywhere(const ps::member& node, ps::range_id id, std::uint64_t sequence, const char* event_name);
  void check_answer(worker_process& self, std::uint64_t pull, const ps::message& values);
  outcome settle();

  muster::random_stream random_;
  // After this time no message is lost. A lost copy is sent again after twice the time. When a fifth of the messages
  // was lost, eight copies in a row were lost once in 80,000 runs, and the run ended before the ninth.
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
  ps::shard_map map_;  // the store's map
  std::map<ps::member, std::unique_ptr<process>> processes_;
  std::set<ps::member> looking_;
  // For each push, by sequence: its clock.
  std::map<std::pair<ps::range_id, ps::member>, std::vector<std::uint64_t>> clocks_;
  // For each push, by sequence: its place.
  std::map<std::pair<ps::range_id, ps::member>, std::vector<std::uint64_t>> places_;
  std::map<std::pair<ps::range_id, ps::member>, std::uint64_t> acknowledged_;
  // By place: the lease and the index of the batch in it.
  std::map<std::uint64_t, std::pair<ps::lease, std::uint64_t>> trained_;
  bool over_ = false;
  int swaps_under_way_ = 0;
  std::set<ps::member> whole_;               // healthy processes since the end of the faults
  std::map<ps::member, int> must_progress_;  // workers among these, with the step that they must reach
  std::vector<process*> left_faulty_;
  std::uint64_t waited_ = 0;  // number of turns
  outcome seen_;
  std::uint32_t server_faults_ = 0;
  bool excused_ = false;
  bool traced_ = std::getenv("MUSTER_TEST_TRACE") != nullptr;  // with one seed: prints the events
};

}  // namespace simulation
