// A server process of a job: the protocol's state machine, the values and the connections.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>
#include <muster/elastic/departure.hpp>

#include <muster/ps/protocol/server_protocol.hpp>
#include <muster/ps/runtime/process.hpp>
#include <muster/ps/runtime/tables.hpp>
#include <muster/ps/table_files.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

class server_process final : process, public server_output {
 public:
  explicit server_process(const process_setup& setup)
      : process(setup),
        values_(setup.layout, setup.options.consistency_model, setup.options.compress),
        newest_(first_),
        store_(setup.store),
        self_(setup.self.place),
        folders_(setup.job) {
    values_.before_change([this](range_id range) { link_.release(range, ~std::uint64_t{0}); });
    core_.emplace(setup.self, protocol_, values_, *this, first_);
    serves_ = !core_->is_fenced();
  }

  server_process(const server_process&) = delete;
  server_process& operator=(const server_process&) = delete;

  // The link must not use the tables' memory after the destructor.
  ~server_process() override { link_.close(); }

  /// Sets the folder into which an elastic job without workers saves its tables.
  void save_into(const std::string& folder) {
    folder_ = folder;
    if (!folder.empty()) folders_.note_owner(folder);
  }

  /// Serves while the map contains this server, and is a hot spare otherwise. Returns when the job is over.
  void serve() {
    clock::time_point next_tick{};
    clock::time_point done_since{};
    deserted_since_ = clock::now();
    for (int idle = 0; !stopped_; ++idle) {
      const auto now = clock::now();
      if (renew_link()) core_->send_again();
      const bool received = link_.poll([&](auto frame, auto payload) { core_->on_frame(frame, now, payload); });
      const bool ticks = now >= next_tick;
      if (ticks) tick(now);
      link_.set_identity({.sender = core_->self(), .map_version = core_->newest_map()});
      core_->send_due_replies();
      link_.flush();
      if (ticks) next_tick = next_tick_after(now);
      any_finished_ = any_finished_ || core_->received_farewell();
      if (received || ticks) note_departures();
      if (received) idle = 0;
      note_load(received, now);
      if (core_->is_fenced()) {
        stand_by();
        if (all_workers_left() && !awaits_workers()) return;
        idle = spins_before_pause;
      }
      if (!is_done() || core_->is_fenced()) {
        done_since = {};
      } else if (done_since == clock::time_point{}) {
        done_since = now;
      } else if (now - done_since > (awaits_acknowledgement() ? 20 : 1) * protocol_.farewell_time &&
                 (link_.is_idle() || now - done_since > 2 * protocol_.farewell_time)) {
        return;  // a worker that received one farewell waits for no other: messages in transit to it are never received
      }
      if (idle >= spins_before_pause || link_.should_yield()) link_.pause(next_tick);
    }
  }

  /// Stops serving, without notifying other processes. May be called from any thread.
  void stop() noexcept { stopped_ = true; }

 private:
  // Values are sent from the tables' memory. Before they change, the rest of the transmission uses a copy.
  void send(const member& worker, const message& msg) override {
    if (msg.kind == message_kind::alive) return link_.send(worker, with_load(msg));
    const bool may_borrow = msg.kind == message_kind::values && values_.reads_in_place(msg.range, msg);
    link_.send(worker, msg, may_borrow);
  }
  [[nodiscard]] bool has_room(const member& worker) const override {
    return link_.frames_in_flight(worker.place) < frames_at_once;
  }
  void swap(std::uint64_t expected, const shard_map& next) override { keeper_.swap(expected, next); }

  // Counts the time since the previous turn of the loop by the result of the poll in this turn, which began at `now`:
  // the server has waited in the previous turn, and has handled messages in this turn.
  void note_load(bool received, clock::time_point turn_began) {
    const auto turn_ended = clock::now();
    if (measured_to_ == clock::time_point{}) {
      if (!received) return;
      load_began_ = measured_to_ = turn_began;
    }
    if (link_was_in_use_) transfer_time_ += turn_began - measured_to_;
    if (received || link_was_in_use_) (received ? busy_time_ : transfer_time_) += turn_ended - turn_began;
    link_was_in_use_ = link_.is_transferring();
    measured_to_ = turn_ended;
  }
  [[nodiscard]] message with_load(message answer) const {
    const auto all = seconds(clock::now() - load_began_).count();
    const auto thousandths = [&](clock::duration part) {
      return all > 0 ? static_cast<std::uint32_t>(1000 * seconds(part).count() / all) : 0;
    };
    answer.count = thousandths(busy_time_);
    answer.offset = thousandths(transfer_time_);
    return answer;
  }

  void tick(clock::time_point now) {
    find_lost([&](node_id place, bool may_return) {
      if (!may_return) {
        log(log_level::info, "rank " + std::to_string(place) + " is gone from the parameter server's job");
        departed_workers_.insert(place);
        lost_places_here_.insert(place);
        return;
      }
      each_of(core_->map(), [&](const member& node) {
        if (node.place == place) core_->on_disconnect(node, now);
      });
    });
    if (const auto map = keeper_.take()) apply_map(*map, now);
    const bool failed = keeper_.take_failure();
    end_without_workers(now);
    if (!serves_) return offer_itself(failed);
    end_if_deserted(now);
    if (failed) core_->swap_failed();
    report_lost();
    core_->tick(now);
  }

  // Applies the map, in which this server may start serving, leave or be fenced.
  void apply_map(const shard_map& map, clock::time_point now) {
    newest_ = map;
    // The servers of a finished job end one after the other: their ranges are not lost.
    if (const auto lost = map.lost_range(); lost && !outcome_ && !is_done()) throw tables_lost(layout_, *lost);
    if (serves_) {
      const auto* const own = map.server(self_);
      const bool holds_some = std::any_of(core_->map().ranges.begin(), core_->map().ranges.end(),
                                          [&](const shard_range& range) { return range.holds(self_); });
      // An entry with a later incarnation is for the next server at this place. Intermediate maps may be missed.
      leaves_ = own != nullptr && own->node == core_->self() ? own->leaving : leaves_ || !holds_some;
    }
    core_->apply_map(map, now);
  }

  template <class Visit>
  static void each_of(const shard_map& map, const Visit& visit) {
    for (const auto& entry : map.servers) visit(entry.node);
    for (const auto& node : map.workers) visit(node);
  }

  // Repeated at each tick, because only a later map may contain the lost peer, and delayed messages may arrive after
  // its end. If the transport reports an end, the connection alone may have failed: the last holder of a range is kept.
  void report_lost() {
    each_of(newest_, [&](const member& node) {
      const bool proven = std::ranges::find(lost_places_, node.place) != lost_places_.end();
      if (proven || lost_places_here_.contains(node.place)) core_->suspect(node, proven);
    });
  }

  // A turn of the loop that receives nothing does not look each worker up.
  void note_departures() {
    for (const auto& node : newest_.workers) {
      if (core_->has_left(node)) departed_workers_.insert(node.place);
    }
  }

  // Called while the core's map does not contain this server. Ends the service, or starts it again if the newest map
  // contains this server. Does not wait.
  void stand_by() {
    const auto* const own_entry = newest_.server(self_);
    if (std::exchange(serves_, false)) {
      // A server that was fenced and is in the map again starts without state.
      if (!leaves_ && own_entry == nullptr) {
        throw peer_failure({},
                           "server " + to_string(core_->self()) +
                               " was fenced by the other servers of the job (they received no message from it, or its "
                               "connections broke); they serve its ranges now");
      }
      log(log_level::info, "server " + to_string(core_->self()) + " has stopped serving");
    }
    if (own_entry == nullptr || own_entry->leaving) return;
    log(log_level::info, "server " + to_string(own_entry->node) + " starts serving");
    leaves_ = false;
    serves_ = true;
    core_.emplace(own_entry->node, protocol_, values_, *this, newest_);
  }

  // Proposes a map with this hot spare if a server has died. Among several hot spares the fastest succeeds, and the
  // other hot spares read the new map. A hot spare without connections to all peers does not propose itself, because it
  // would soon be fenced, or fence other peers.
  void offer_itself(bool is_retry) {
    bool reaches_all = true;
    each_of(newest_, [&](const member& node) { reaches_all = reaches_all && !lost_places_here_.contains(node.place); });
    if (!reaches_all || (newest_.version == offered_at_ && !is_retry)) return;
    offered_at_ = newest_.version;
    if (const auto next = with_standby(newest_, self_)) keeper_.swap(newest_.version, *next);
  }

  // Ends the job if all workers have ended and no server could write that into the map for the time of a call: the
  // store ended with a worker.
  void end_if_deserted(clock::time_point now) {
    if (!all_workers_left() || core_->is_done()) {
      deserted_since_ = now;
    } else if (now - deserted_since_ > protocol_.worker_silence) {
      throw peer_failure({}, "server " + to_string(core_->self()) +
                                 " ends (all workers have ended, and the store of the job does not answer); start the "
                                 "job again from its last saved tables");
    }
  }

  // Returns true if all workers of an elastic job have died. Other workers may join.
  [[nodiscard]] bool awaits_workers() const { return links_ != nullptr && !any_finished_ && newest_.workers.empty(); }
  void end_without_workers(clock::time_point now) {
    if (!awaits_workers()) {
      worked_at_ = now;
      save_.reset();
      outcome_.reset();
      return;
    }
    if (now - worked_at_ <= protocol_.quorum) return;
    std::string advice = "without a folder for checkpoints what they trained is lost); start the job again with one";
    if (!folder_.empty()) {
      if (!outcome_) {
        outcome_ = save(now);
        outcome_at_ = now;
      }
      // The server ends when the other servers know the outcome too.
      if (!outcome_ || now - outcome_at_ < protocol_.farewell_time) return;
      advice = outcome_->empty()
                   ? "the tables are saved in " + folder_ + "); start the job again to continue from these tables"
                   : "the tables are not saved: " + *outcome_ + "); start the job again from the previous save";
    }
    const auto limit = muster::detail::printed("%g s; ", seconds(protocol_.quorum).count());
    throw elastic::departure(elastic::exit_reason::too_few,
                             "server " + to_string(core_->self()) +
                                 " ends (all workers have died, and none joined within " + limit + advice);
  }

  // Each server writes the ranges whose head it is in the present map, and writes again with a later map. Nothing is
  // trained meanwhile. Returns an empty string if all tables are saved, the reason if not, and nullopt while other
  // servers write.
  std::optional<std::string> save(clock::time_point now) {
    const auto& map = core_->map();
    const auto until = now + protocol_.worker_silence;
    if (!save_ || saved_by_ != map.version) {
      saved_by_ = map.version;
      save_.emplace(store_, "ps/saved/" + std::to_string(map.version), folder_, folders_);
      is_added_ = !serves_;
      outcome_until_ = until + protocol_.quorum;
    }
    std::string problem = "other servers have not written their files";
    try {
      if (!is_added_) {
        save_->add(layout_, self_, own_part(now), until);
        is_added_ = true;
        const auto after = clock::now();
        outcome_until_ = after + protocol_.quorum + protocol_.worker_silence + 10 * (after - now);
      }
      if (auto outcome = save_->outcome(until)) return outcome;
    } catch (const timeout_error& late) {  // the store may be reachable again before the other servers stop
      problem = late.what();
    } catch (const peer_failure& lost) {
      problem = lost.what();
    } catch (const error& failed) {
      return failed.what();
    }
    return now < outcome_until_ ? std::nullopt : std::optional(problem);
  }

  server_part own_part(clock::time_point now) {
    core_->end_open_sums(now);
    server_part part;
    for (range_id range = 0; range < layout_.ranges(); ++range) {
      if (!core_->serves(range)) continue;
      part.ranges.push_back(range);
      if (layout_.table_of(range).leases) {
        part.has_order = true;
        const auto* const order = values_.order(range);
        if (order == nullptr || order->plan() == nullptr) continue;
        part.plan = *order->plan();
        part.left = order->leases_left();
        continue;
      }
      add_part(part.values, layout_.range(range).table, values_.read(range, {.flags = saves}));
      muster::detail::wire_writer used;
      used.add(range);
      for (const auto place : core_->used(range).above_bound()) used.add(place);
      const auto text = used.take();
      add_part(part.values, places_part, std::as_bytes(std::span(text)));
    }
    return part;
  }

  // Returns true if every worker in the map has sent its farewell.
  [[nodiscard]] bool is_done() const { return core_->is_done() && !awaits_workers(); }
  // Returns true if a worker may not have received the answer to its farewell yet: it may wait for a processor.
  [[nodiscard]] bool awaits_acknowledgement() const {
    return links_ == nullptr && !std::ranges::all_of(first_.workers, [&](const member& node) {
             return core_->has_all_acknowledgements(node.place) || lost_places_here_.contains(node.place);
           });
  }
  [[nodiscard]] bool all_workers_left() const {
    return std::ranges::all_of(newest_.workers,
                               [&](const member& node) { return departed_workers_.contains(node.place); });
  }

  detail::tables values_;
  shard_map newest_;
  std::shared_ptr<any_store> store_;
  std::optional<server> core_;                      // also while this server is fenced or a hot spare; always set
  clock::time_point load_began_{}, measured_to_{};  // of the load; empty before the first message
  clock::duration busy_time_{}, transfer_time_{};
  bool link_was_in_use_ = false;
  bool serves_ = false;
  bool leaves_ = false;  // the map has this server leave, or it held no range: then fencing is no failure
  clock::time_point deserted_since_{};
  clock::time_point worked_at_ = clock::now();  // when there was last a worker, or any had finished
  std::uint64_t offered_at_ = 0;                // version of the map in which this server last proposed itself
  std::atomic<bool> stopped_{false};
  node_id self_;
  bool any_finished_ = false;            // some worker has sent its farewell
  std::string folder_;                   // for the tables of a job without workers; empty: none
  saved_folders folders_;                // owners of the tables in the folder
  std::optional<save_by_servers> save_;  // the save by the map version `saved_by_`
  std::uint64_t saved_by_ = 0;
  bool is_added_ = false;  // this server's part was added
  clock::time_point outcome_until_{}, outcome_at_{};
  std::optional<std::string> outcome_;  // result of the save
  std::set<node_id> departed_workers_;  // workers that have finished or died
  std::set<node_id> lost_places_here_;  // not in an elastic job: places whose connection has ended for ever
};

}}}  // namespace muster::v0::ps::detail
