// How the processes of a job carry a store together, so that it outlives any of them: no sockets, no threads.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <muster/core/clock.hpp>

#include "replica_message.hpp"
#include "replica_table.hpp"

namespace muster::inline v0::detail {

struct replica_policy {
  clock::duration beat = std::chrono::milliseconds(100);
  clock::duration silence = std::chrono::milliseconds(500);  ///< after which a member is suspect
  clock::duration silence_here = std::chrono::seconds(2);    ///< the same of one whose end would be seen
};

/// What a replica wants done.
namespace replica_act {
struct send {  ///< by whatever connection there is, or a new one by the member's card
  replica_member to;
  replica_message what;
};
struct answer {  ///< to a call of this process: the body of a frame
  std::string reply;
};
struct kill {  ///< a member of this host that says nothing: it must not come back
  replica_member who;
};
struct end {};  ///< the others went on without this process
}  // namespace replica_act
using replica_action = std::variant<replica_act::send, replica_act::answer, replica_act::kill, replica_act::end>;

/// An attempt at a view.
struct replica_proposal {
  struct position {
    replica_ballot view;
    std::uint64_t index = 0;
    auto operator<=>(const position&) const = default;
  };
  replica_ballot number;
  replica_view present;                              // the last view that anybody asked knows of
  std::map<std::uint64_t, clock::time_point> asked;  // when
  std::set<std::uint64_t> lost;                      // once while it was asked
  std::set<std::uint64_t> unreachable;               // and again
  std::map<std::uint64_t, position> promised;        // who, and where it is
  position furthest;
  std::optional<std::string> contents;  // there; nothing: this member has them
};

/// One member's part in a replicated store: primary and backups with views, after Viewstamped Replication (Oki and
/// Liskov 1988) and PacificA (Lin et al. 2008), whose configuration its own members agree on as in vertical Paxos.
///
/// The leader of a view puts all requests, reads too, into one order and answers when *every* member of the view has
/// made the change. So each member of a view has all that was ever answered, and the store outlives all but one of
/// them. A member that is gone makes a new view: whoever makes it, usually the oldest that lives, has a promise of each
/// of its members not to hear anybody below its number any more, takes up the furthest contents among them, and gives
/// them to all.
///
/// A view needs the promises of more than half of the last one that was in force, or of half of it with its oldest
/// member; or of all its members that are not proven dead. A proof is the end of the process or of its listening, seen
/// on its own host; who makes a view without a silent member of its own host kills that one first. So nobody who was
/// left behind ever has proof that all those are gone who went on: there is none for who made their view. As long as it
/// is not known which of several views came into force, each of them must agree. Who is in none of these is let in by
/// no promise of its own: a view in force left it out, and forgot which of its calls were done.
///
/// One thread at a time. Whatever comes may come twice, late or never; from one connection it comes in order.
class store_replica {
 public:
  using time = clock::time_point;

  store_replica(replica_member self, const replica_policy& policy, time now);

  // ---- what happens ----
  /// It may begin the store: when so many processes, itself one of several, are here, or more than half of them for so
  /// long that a store that is there already would have been heard of.
  void found(time now, int of) {
    found_of_ = of;
    found_since_ = now;
  }
  /// A process is reached that is no member: it is asked where the store is, or told.
  void meet(const replica_member& whom);
  void hear(time now, std::uint64_t from, const replica_message& said);
  /// The connection to it ended, or none can be made.
  void lost(time now, std::uint64_t who);
  /// Its process has ended, or it carries the store no more: seen on its own host.
  void prove_dead(time now, std::uint64_t who);
  void cannot_kill(std::uint64_t who) { beyond_reach_.insert(who); }
  void tick(time now);

  // ---- what this process wants ----
  /// A request whose answer comes in time; its id was not used before. A watch is taken back by `cancel`.
  void call(time now, const store_request& asked);
  void leave();

  [[nodiscard]] std::vector<replica_action> take() { return std::exchange(actions_, {}); }
  [[nodiscard]] bool is_member() const noexcept { return view_.has(self_.id) && !ended_; }
  /// Whether it is the leader, of a view that has not been given up.
  [[nodiscard]] bool leads() const noexcept {
    return view_ && view_.number.by == self_.id && promised_ == view_.number;
  }
  [[nodiscard]] const replica_view& view() const noexcept { return view_; }

 private:
  struct held_reply {
    std::uint64_t index = 0;  // given when all have made that change
    std::uint64_t to = 0;
    std::string body;
  };

  void hear_join(std::uint64_t from, const replica_message& said);
  void hear_prepare(time now, std::uint64_t from, const replica_message& said);
  void hear_promise(std::uint64_t from, const replica_message& said);
  void hear_refuse(time now, const replica_message& said);
  void hear_install(time now, std::uint64_t from, const replica_message& said);
  void hear_change(time now, std::uint64_t from, const replica_message& said);
  void hear_beat(std::uint64_t from, const replica_message& said);
  [[nodiscard]] bool leaves_out(const replica_view& other) const;
  void learn(const replica_view& other);

  void say_beat();
  void look(time now);
  void look_for_silence(time now);
  void look_at_coordinator(time now);
  [[nodiscard]] bool needs_change() const;
  [[nodiscard]] bool has_suspects() const;
  [[nodiscard]] std::uint64_t coordinator() const;
  [[nodiscard]] clock::duration patience_with(const replica_member& one) const;
  [[nodiscard]] bool sees_end_of(const replica_member& one) const;
  [[nodiscard]] bool is_suspect(const replica_member& one) const;
  [[nodiscard]] bool is_out(const replica_member& one) const;
  void suspect_silent(const replica_member& one);

  void propose(time now);
  void ask_for_promises(time now);
  [[nodiscard]] std::vector<std::vector<replica_member>> in_question() const;
  [[nodiscard]] bool agrees(const std::vector<replica_member>& members) const;
  void conclude(time now);
  void give_up(time now);
  void come_into_force(time now);
  void take_up(time now);
  void know_in_force();
  void forget_others();

  void change(time now, const replica_table::change& made);
  void release();
  void carry_on_calls(time now);
  void deliver(const std::string& body);
  void send(const replica_member& to, replica_message what);
  void send(std::uint64_t to, replica_message what);
  [[nodiscard]] std::vector<std::uint64_t> dead_ones() const { return {dead_.begin(), dead_.end()}; }

  replica_member self_;
  replica_policy policy_;
  replica_view view_;
  replica_ballot promised_;  // nobody below it is heard any more
  std::uint64_t index_ = 0;  // changes made
  replica_table table_;
  std::uint64_t rounds_seen_ = 0;

  // The leader's.
  std::map<std::uint64_t, std::uint64_t> made_;  // by member, up to which change
  std::deque<held_reply> held_;
  std::vector<std::pair<std::uint64_t, replica_message>> early_calls_;
  std::map<std::uint64_t, replica_member> joiners_;

  std::optional<replica_proposal> proposal_;
  time yields_until_{};
  std::uint64_t yields_to_ = 0;  // unless that one is gone
  std::uint64_t waits_for_ = 0;  // to make a view
  std::set<std::uint64_t> passed_over_;
  time waits_since_{};

  std::map<std::uint64_t, time> heard_;
  std::set<std::uint64_t> dead_;
  std::set<std::uint64_t> silent_;
  std::set<std::uint64_t> broken_;  // a connection ended: what was on its way may be lost
  std::set<std::uint64_t> beyond_reach_;
  std::map<std::uint64_t, std::string> calls_;  // of this process, that have no answer yet

  int found_of_ = 0;
  time found_since_{};
  std::optional<replica_member> asks_;  // to be let in
  time said_{};
  time ticked_;
  bool ended_ = false;
  bool left_ = false;
  std::vector<replica_action> actions_;
};

}  // namespace muster::inline v0::detail
