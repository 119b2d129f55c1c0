// A server in a job: the protocol's state machine, its values and its connections.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/departure.hpp>

#include "../protocol/server.hpp"
#include "../table_files.hpp"
#include "process.hpp"
#include "tables.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

class server_process final : process, public server_outlet {
 public:
  explicit server_process(const seat& at)
      : process(at),
        values_(at.layout, at.options.how, at.options.compress),
        newest_(first_),
        store_(at.store),
        self_(at.self.at) {
    values_.before_change([this](range_id range) { link_.give_back(range, ~std::uint64_t{0}); });
    core_.emplace(at.self, protocol_, values_, *this, first_);
    serves_ = !core_->is_fenced();
  }

  server_process(const server_process&) = delete;
  server_process& operator=(const server_process&) = delete;

  // Its tables go.
  ~server_process() override { link_.close(); }

  /// Where an elastic job without workers leaves its tables.
  void save_into(const std::string& folder) { folder_ = folder; }

  /// Serves as long as the map names it, and stands by else; until the job is over.
  void serve() {
    clock::time_point next_tick{};
    clock::time_point done_since{};
    deserted_since_ = clock::now();
    for (int idle = 0; !stopped_; ++idle) {
      const auto now = clock::now();
      if (renew_link()) core_->send_again();
      const bool heard = link_.poll([&](auto frame, auto apart) { core_->hear(frame, now, apart); });
      if (now >= next_tick) {
        next_tick = now + protocol_.retry / ticks_a_retry;
        tick(now);
      }
      link_.introduce({.from = core_->self(), .map_version = core_->newest_map()});
      core_->flush();
      link_.ship();
      any_finished_ = any_finished_ || core_->heard_farewell();
      for (const auto& node : newest_.workers) {
        if (core_->has_left(node)) left_.insert(node.at);
      }
      if (heard) idle = 0;
      if (core_->is_fenced()) {
        stand_by();
        if (is_over() && !awaits_workers()) return;
        idle = spins_before_pause;
      }
      if (!is_done() || core_->is_fenced()) {
        done_since = {};
      } else if (done_since == clock::time_point{}) {
        done_since = now;
      } else if (now - done_since > (waits_for_answer() ? 20 : 1) * protocol_.last_words &&
                 (link_.is_idle() || now - done_since > 2 * protocol_.last_words)) {
        return;  // a worker that heard one farewell does not wait for the next: what is under way to it is never taken
      }
      if (idle >= spins_before_pause || link_.should_yield()) link_.pause(next_tick);
    }
  }

  /// From any thread: it serves no more, and tells no other process.
  void stop() noexcept { stopped_ = true; }

 private:
  // Values go from where they lie, and from a copy when they are about to change.
  void send(const member& to, const message& what) override {
    const bool lends = what.what == message_kind::values && values_.reads_in_place(what.range, what);
    link_.send(to, what, lends);
  }
  [[nodiscard]] bool has_room(const member& to) const override { return link_.under_way(to.at) < frames_at_once; }
  void swap(std::uint64_t expected, const shard_map& next) override { keeper_.swap(expected, next); }

  void tick(clock::time_point now) {
    find_lost([&](node_id at, bool may_return) {
      if (!may_return) {
        log(log_level::info, "rank " + std::to_string(at) + " is gone from the parameter server's job");
        left_.insert(at);
        lost_.insert(at);
        return;
      }
      each_of(core_->map(), [&](const member& one) {
        if (one.at == at) core_->doubt(one, now);
      });
    });
    if (const auto map = keeper_.take()) learn(*map, now);
    const bool failed = keeper_.take_failure();
    end_without_workers(now);
    if (!serves_) return offer_itself(failed);
    end_if_deserted(now);
    if (failed) core_->swap_failed();
    tell_gone();
    core_->tick(now);
  }

  // What the map makes of this server, which begins, leaves or is fenced.
  void learn(const shard_map& map, clock::time_point now) {
    newest_ = map;
    // The servers of a job that is over end one after the other: what those held is not lost.
    if (const auto lost = map.lost_range(); lost && !told_ && !is_done()) throw tables_lost(layout_, *lost);
    if (serves_) {
      const auto* const own = map.server(self_);
      const bool holds_some = std::any_of(core_->map().ranges.begin(), core_->map().ranges.end(),
                                          [&](const shard_range& range) { return range.holds(self_); });
      // An entry of a later incarnation is for the next process to serve here: of several maps only the last may be
      // seen.
      goes_ = own != nullptr && own->node == core_->self() ? own->leaving : goes_ || !holds_some;
    }
    core_->learn(map, now);
  }

  template <class Tell>
  static void each_of(const shard_map& map, const Tell& tell) {
    for (const auto& one : map.servers) tell(one.node);
    for (const auto& one : map.workers) tell(one);
  }

  // Each time anew: only a later map may name them, and words that were under way may come after the end. What the
  // transport says of an end may be a broken connection: the last holder of a range is kept in hope.
  void tell_gone() {
    each_of(newest_, [&](const member& one) {
      const bool proven = std::ranges::find(gone_, one.at) != gone_.end();
      if (proven || lost_.contains(one.at)) core_->suspect(one, proven);
    });
  }

  // Holds nothing, and waits to be named.
  void stand_by() {
    const auto* const own = newest_.server(self_);
    if (std::exchange(serves_, false)) {
      if (!goes_ && own == nullptr) {  // else it was given up and named again, and begins with nothing
        throw peer_failure({},
                           "server " + to_string(core_->self()) +
                               " was fenced by the other servers of its job (they received no messages of it, or its "
                               "connections broke); they serve its ranges now");
      }
      log(log_level::info, "server " + to_string(core_->self()) + " has stopped serving");
    }
    if (own == nullptr || own->leaving) return;
    log(log_level::info, "server " + to_string(own->node) + " starts serving");
    goes_ = false;
    serves_ = true;
    core_.emplace(own->node, protocol_, values_, *this, newest_);
  }

  // A server that serves may have died. The fastest standby takes its place; the others learn that from the map. One
  // that has no connection with some of them would be given up again, or give up what they have.
  void offer_itself(bool again) {
    bool reaches_all = true;
    each_of(newest_, [&](const member& one) { reaches_all = reaches_all && !lost_.contains(one.at); });
    if (!reaches_all || (newest_.version == offered_at_ && !again)) return;
    offered_at_ = newest_.version;
    if (const auto next = with_standby(newest_, self_)) keeper_.swap(newest_.version, *next);
  }

  // All workers are gone, and for as long as a call may take no server could write that into the map: the store went
  // with one of them.
  void end_if_deserted(clock::time_point now) {
    if (!is_over() || core_->is_done()) {
      deserted_since_ = now;
    } else if (now - deserted_since_ > protocol_.worker_silence) {
      throw peer_failure({}, "server " + to_string(core_->self()) +
                                 " ends (all workers have ended, and the store of the job does not answer); start the "
                                 "job again from its last saved tables");
    }
  }

  // Of an elastic job: all workers have died, and others may join.
  [[nodiscard]] bool awaits_workers() const { return links_ != nullptr && !any_finished_ && newest_.workers.empty(); }
  void end_without_workers(clock::time_point now) {
    if (!awaits_workers()) {
      worked_at_ = now;
      save_.reset();
      told_.reset();
      return;
    }
    if (now - worked_at_ <= protocol_.quorum) return;
    std::string told = "without a folder for checkpoints what they trained is lost); start the job again with one";
    if (!folder_.empty()) {
      if (!told_) {
        told_ = save(now);
        told_at_ = now;
      }
      if (!told_ || now - told_at_ < protocol_.last_words) return;  // it ends when the others know it too
      told = told_->empty() ? "the tables are saved in " + folder_ + "); start the job again to go on from there"
                            : "the tables are not saved: " + *told_ + "); start the job again from those before";
    }
    char limit[32];
    std::snprintf(limit, sizeof limit, "%g s; ", seconds(protocol_.quorum).count());
    throw elastic::departure(
        elastic::exit_reason::too_few,
        "server " + to_string(core_->self()) + " ends (all workers have died, and none joined within " + limit + told);
  }

  // Nothing is trained meanwhile: each server writes what it heads by the present map, and again by a later one. The
  // outcome is empty where all is saved; there is none while others write.
  std::optional<std::string> save(clock::time_point now) {
    const auto& map = core_->map();
    const auto until = now + protocol_.worker_silence;
    if (!save_ || saved_by_ != map.version) {
      saved_by_ = map.version;
      save_.emplace(store_, "ps/saved/" + std::to_string(map.version), folder_);
      is_added_ = !serves_;
      outcome_until_ = until + protocol_.quorum;
    }
    std::string problem = "other servers have not written theirs";
    try {
      if (!is_added_) {
        save_->add(layout_, self_, own_part(now), until);
        is_added_ = true;
        const auto after = clock::now();
        outcome_until_ = after + protocol_.quorum + protocol_.worker_silence + 10 * (after - now);
      }
      if (auto told = save_->outcome(until)) return told;
    } catch (const timeout_error& late) {  // the store may be back before the others give up
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
    server_part mine;
    for (range_id range = 0; range < layout_.ranges(); ++range) {
      if (!core_->serves(range)) continue;
      mine.ranges.push_back(range);
      if (layout_.table_of(range).leases) {
        mine.has_order = true;
        const auto* const order = values_.order(range);
        if (order == nullptr || order->plan() == nullptr) continue;
        mine.plan = *order->plan();
        mine.left = order->leases_left();
        continue;
      }
      add_part(mine.values, layout_.range(range).table, values_.read(range, {.flags = saves}));
      muster::detail::wire_writer used;
      used.add(range);
      for (const auto place : core_->used(range).behind_bound()) used.add(place);
      const auto text = used.take();
      add_part(mine.values, places_part, std::as_bytes(std::span(text)));
    }
    return mine;
  }

  // Each worker of the map has said that it has finished.
  [[nodiscard]] bool is_done() const { return core_->is_done() && !awaits_workers(); }
  // Whether a worker may not have heard yet that this server knows of its farewell: it waits for a processor, say.
  [[nodiscard]] bool waits_for_answer() const {
    return links_ == nullptr && !std::ranges::all_of(first_.workers, [&](const member& node) {
             return core_->is_informed(node.at) || lost_.contains(node.at);
           });
  }
  [[nodiscard]] bool is_over() const {
    return std::ranges::all_of(newest_.workers, [&](const member& node) { return left_.contains(node.at); });
  }

  detail::tables values_;
  shard_map newest_;
  std::shared_ptr<any_store> store_;
  std::optional<server> core_;  // one that is fenced, where it stands by; always there
  bool serves_ = false;
  bool goes_ = false;  // the map wants it to, or to leave with nothing: then it is no failure to be fenced
  clock::time_point deserted_since_{};
  clock::time_point worked_at_ = clock::now();  // there was a worker, or the last one had finished
  std::uint64_t offered_at_ = 0;                // the version of the map when it wanted to serve last
  std::atomic<bool> stopped_{false};
  node_id self_;
  bool any_finished_ = false;            // of the workers
  std::string folder_;                   // for the tables of a job without workers; empty: none
  std::optional<save_by_servers> save_;  // by that version of the map
  std::uint64_t saved_by_ = 0;
  bool is_added_ = false;  // what this server has
  clock::time_point outcome_until_{}, told_at_{};
  std::optional<std::string> told_;  // what came of it
  std::set<node_id> left_;           // workers that are done, or dead
  std::set<node_id> lost_;           // not of an elastic job: their connection has ended, and no other is made
};

}}}  // namespace muster::v0::ps::detail
