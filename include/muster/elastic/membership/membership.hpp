// The membership protocol: how the processes of an elastic job agree on each generation's members. The protocol has no
// sockets, clocks or threads: the same code runs in a process (service.hpp) and in a simulation. Its steps are counts
// of progress: a training counts its committed steps, finished evaluations and finished runs together.
//
// States of a process:
//   waiting   The process has added its entry to `generation_record::waiting` and is in no generation.
//   running   The process is a member of the present generation. It may commit steps.
//   stopping  The member has a reason to stop (`must_stop_`). Its rank aborts the group and returns from its step.
//   stopped   The member has sent `heartbeat::stopped`: a promise to take no further part in this generation.
//   ended     The process has no further part in the job. `exit_reason` holds the reason.
//
// Shared data:
//   generation_record  The store holds one record per job. A process changes it only by compare-and-swap on the version
//                      that it has read. A waiting process adds its own entry to `waiting`. The first process that sees
//                      enough waiting processes writes generation 1. Afterwards only the first member that stays (or
//                      the first that leaves, if all leave) writes the next generation.
//   heartbeat          Each member sends its own complete state, and only its own. A lost, repeated or late heartbeat
//                      does no harm: receivers use the highest number of a sender and ignore all others.
//
// Order of events from one generation to the next:
//   1. A member finds a reason to stop: a proof of death, a suspicion, a broken connection, or another member's
//      `stopped`. For a planned change (a process joins or leaves) rank 0 instead sets `heartbeat::halt`: all members
//      stop after that step.
//   2. Each member stops its rank and then sends `stopped`. After the first reason to stop, every member sends its
//      heartbeats to all members, and every member monitors all others.
//   3. All members that are not dead or suspect have stopped, and a majority shares each suspicion. The first member
//      that stays writes the next generation: the members that stay, the waiting processes that it admits, the furthest
//      committed step and the members that have the state of that step (`state_sources`).
//   4. Every process reads the new record. Members of the new generation connect (`membership_outlet::form`). A former
//      member that is missing from the record is fenced and ends.
//   5. A member that does not return from its step within half of `quorum_timeout` is suspect. A stopped member that
//      reads no new record within `quorum_timeout` ends, with `too_few` or `no_majority`.
//
// Invariants:
//   - A generation has at most one successor, because the compare-and-swap succeeds on one version only.
//   - A step commits at a member only when every member of the generation took part. After the first `stopped`, no
//     further step begins in that generation. Members therefore differ by at most one step.
//   - No two groups of one job are live at the same time: every member of the next generation has stopped in this one,
//     and only a majority (of two members, the first to reach the store) may leave a suspect behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/elastic/departure.hpp>

#include <muster/elastic/membership/record.hpp>

namespace muster { inline namespace v0 { namespace elastic {

/// The limits and time-outs of a job.
struct membership_policy {
  /// Number of waiting processes with which the first generation begins. After half of `quorum_timeout`, the larger of
  /// `min_members` and `min_at_start` suffices.
  int initial_members = 1;
  int min_at_start = 1;
  int min_members = 1;  ///< smallest number of members; a smaller group waits for joiners
  int max_members = 1 << 20;
  clock::duration heartbeat_interval = std::chrono::milliseconds(100);  ///< interval between two heartbeats
  clock::duration suspicion_timeout =
      std::chrono::milliseconds(500);  ///< a member without a heartbeat for so long is suspect
  double slow_factor = 0;           ///< a slow member's part of a step takes so many times the median; 0: none is slow
  bool slow_members_leave = false;  ///< true: a slow member leaves the job; false: it is only reported
  clock::duration quorum_timeout = std::chrono::seconds(
      30);  ///< how long to wait for a majority and for `min_members`; a hung member gets half the time
  /// Number of ranks after a member's own, in a ring, that receive all its heartbeats and judge its silence. A dead
  /// host with so many ranks still has a monitor outside the host for each of them.
  int monitors = 16;

  /// Returns how long a member on the local host may be silent. The host itself shows a process that died or
  /// was stopped, so silence alone is most likely a sign of an overloaded host. Killing a healthy process there would
  /// help no member.
  [[nodiscard]] clock::duration local_suspicion_timeout() const {
    return std::max(4 * suspicion_timeout, quorum_timeout / 2);
  }
};

/// The actions that the protocol requests; see `membership`. The protocol calls them during its events. An outlet must
/// not start an event of the protocol from within a call.
class membership_outlet {
 public:
  virtual ~membership_outlet() = default;

  /// Sends `message` to these processes of the record, members or waiting.
  virtual void send(const heartbeat& message, const std::vector<member_id>& recipients) = 0;
  /// Replaces the store's record by `next` if its version still is `expected`. The outlet reports the result by
  /// `on_record` or `store_failed`.
  virtual void swap(std::uint64_t expected, const generation_record& next) = 0;
  /// Ends this process's part in the present generation at once: aborts the group and wakes every wait. The process
  /// then calls `stopped`.
  virtual void stop(const std::string& reason) = 0;
  /// Requests to stop after that step, or after the first later step that is complete.
  virtual void halt(std::uint64_t step) = 0;
  /// Kills a suspect process on the local host.
  virtual void kill(const member& peer) = 0;
  /// Prints a message for people.
  virtual void note(const std::string& text) = 0;
  /// Builds the generation's group.
  virtual void form(const generation_record& group) = 0;
  /// Ends this process's part in the job. The protocol calls no function of the outlet afterwards. `is_first`: true at
  /// one of the members that end for the same reason, as far as this member knows; after `left` and `too_few` that
  /// member saves the state of the job.
  virtual void end(exit_reason reason, const std::string& text, bool is_first) = 0;
};

/// Returns the least time that a member's own part took in these steps. The shortest of several steps is ignored: the
/// last batch of an epoch is small at all members, but their heartbeats report it at different times.
[[nodiscard]] clock::duration least_work(std::span<const clock::duration> steps) noexcept;

/// The protocol's state machine at one process: events in, calls of its outlet out. The caller provides the time, and
/// no call waits. The states and the order of events are described at the head of the file.
///
/// A proof of death is issued by the victim's own host and needs no consent. A suspicion (silence, a broken
/// connection, no progress) counts when a strict majority of the members not proven dead shares it. Two members have no
/// such majority, so the first to reach the store stays. A suspect on this member's host is killed instead, which makes
/// the suspicion a proof. A member that receives heartbeats from both sides of a partition adopts the suspicions of the
/// first member after a while, so that there is a majority. This is necessary when the same two members separate again,
/// or when no majority agrees at first. A member that keeps suspecting most other members is itself suspect: its
/// heartbeats arrive, and it receives none.
///
/// While nothing changes, a member sends its heartbeats to its monitors and to a few other processes in turn, so that
/// every process is informed of every other in time. As long as one member lives, the last of several silent ranks is
/// directly followed by a live rank that monitors it. After the first reason to stop and until the next generation, and
/// for a request, a member sends heartbeats to all, and each member judges all others. A member adopts the decision of
/// most monitors about a peer that it did not monitor before and from which it has received nothing since. In a job
/// with no more members than monitors every member monitors all others.
///
/// Not thread safe. `on_heartbeat` is O(1) plus O(1) per dead member in the message; the next tick acts on its
/// contents. A tick is O(monitors), and O(members) once per heartbeat interval to find slow members. During a change
/// both are O(members).
class membership {
 public:
  membership(member self, membership_policy policy, membership_outlet& outlet, clock::time_point now);

  // ---- events ----
  /// Starts one turn of events; call it first. A late turn (this process was stopped, or its host was suspended) does
  /// not count its own gap as the silence of others.
  void wake(clock::time_point now);
  /// Advances the time. Call it at least once per heartbeat interval, and after received heartbeats.
  void tick(clock::time_point now);
  void on_heartbeat(clock::time_point now, const heartbeat& message);
  /// Reports the record that the store holds; version 0: the store holds none.
  void on_record(clock::time_point now, std::uint64_t version, const generation_record& record);
  /// Reports a swap whose result is unknown; the protocol tries it again.
  void store_failed(clock::time_point now);
  /// Reports that the store now holds another job's table, in which this process has no part.
  void left_behind(const std::string& reason);
  /// Reports that the peer's process has ended, as observed on its own host.
  void prove_dead(clock::time_point now, member_id peer);
  /// Reports a suspicion of this member. A suspect on the local host is killed.
  void suspect(clock::time_point now, member_id peer, const std::string& reason);
  /// Reports a broken connection to `peer`. This generation is over, and the peer is suspect unless a heartbeat arrives
  /// within one heartbeat interval.
  void disconnected(clock::time_point now, member_id peer, const std::string& reason);
  /// Reports this member's progress, and the committed steps in this progress.
  void committed(std::uint64_t progress, std::uint64_t steps);
  /// Reports the least time that this member's own part took in the last steps, without waiting for others.
  void report_step_time(clock::duration least);
  /// Reports the slowest of this member's connections with much traffic (`peer` is 0 if no connection has much), and
  /// the bandwidth that its best connection has at any time, in bytes per second.
  void report_slow_link(const link_seen& slowest, std::uint64_t best_rate);
  /// Reports that this member takes no further part in the present generation; its step is final. Also allowed without
  /// a request to stop.
  void stopped(clock::time_point now);
  /// Requests to leave at the next boundary between steps.
  void leave(clock::time_point now);

  /// Sets the endpoints at which this process waits for the members of the next generation. Later heartbeats carry
  /// them.
  void set_endpoints(std::string endpoints);

  // ---- queries ----
  [[nodiscard]] const generation_record& record() const noexcept { return record_; }
  /// Returns true if this process is a member of the present generation.
  [[nodiscard]] bool is_member() const noexcept { return rank_.has_value(); }
  /// Returns true if `peer` is a member of the present generation.
  [[nodiscard]] bool is_in(member_id peer) const { return ranks_.contains(peer); }
  /// Returns true if this member takes no further part in the present generation; see `stopped`.
  [[nodiscard]] bool has_stopped() const noexcept { return own_.stopped; }
  /// Returns true if this process takes no further part in the job: `membership_outlet::end` was called.
  [[nodiscard]] bool has_ended() const noexcept { return ended_; }
  /// Returns true if a member of the present generation has been proven dead.
  [[nodiscard]] bool is_dead(member_id peer) const { return dead_.contains(peer); }
  [[nodiscard]] bool is_suspect(member_id peer) const { return suspects_.contains(peer); }
  /// Returns true if this member requests to leave and no member gains by waiting: every other live member has
  /// announced that it leaves too, or a member that stays has stopped and waits for a group without this one.
  [[nodiscard]] bool may_leave() const;
  /// Returns true if this member monitors `peer` and has received nothing from it for the time after which members on
  /// other hosts suspect it.
  [[nodiscard]] bool is_silent(clock::time_point now, member_id peer) const {
    return (must_stop_ || monitored_.contains(peer)) && !has_recent_heartbeat(now, peer);
  }
  /// Returns why a member is suspect or dead; empty if it is neither.
  [[nodiscard]] std::string reason_for(member_id peer) const;
  /// Returns the peer's last heartbeat in the present generation; an empty heartbeat if none has arrived.
  [[nodiscard]] const heartbeat& heartbeat_of(member_id peer) const;
  /// Returns when the present change began for this member: it detected or was notified of the first reason to stop.
  [[nodiscard]] clock::time_point change_began() const noexcept { return change_began_; }

 private:
  struct view {
    heartbeat last;
    clock::time_point received_at;
    std::optional<clock::time_point> suspects_most_since{};  // each heartbeat since then suspects most members
  };

  void announce(clock::time_point now);
  void form_first(clock::time_point now);
  void enter(clock::time_point now, const generation_record& next);
  void set_record(const generation_record& record);
  void merge_heartbeat(clock::time_point now, const heartbeat& message);
  void evaluate(clock::time_point now);
  void find_silent_members(clock::time_point now);
  void plan_reconfiguration(clock::time_point now);
  static constexpr const char* connections_are_slow = "its connections are slow";
  [[nodiscard]] bool has_become_slow() const;
  void find_slow_members(clock::time_point now);
  void find_slow_links(clock::time_point now);
  [[nodiscard]] bool can_spare_a_member(clock::time_point now) const;
  void request_leave(clock::time_point now, const member& slow, const std::string& reason);
  void stop_rank(clock::time_point now, const std::string& reason);
  void begin_change(clock::time_point now);
  [[nodiscard]] bool monitors_suspect(const member& peer) const;
  void adopt_suspicions(clock::time_point now);
  /// The members of a generation that is over, by their part in the next one. Members proven dead are in no list.
  struct member_outcome {
    std::vector<member> staying;
    std::vector<member_id> leaving;
    std::vector<member_id> suspected;
    std::size_t alive = 0;  // number of members not proven dead
  };
  void decide_next_generation(clock::time_point now);
  [[nodiscard]] std::optional<member_outcome> classify_members() const;
  [[nodiscard]] bool ensure_state_source(member_outcome& members) const;
  [[nodiscard]] bool majority_suspects_each(const member_outcome& members) const;
  void find_state_sources(const member_outcome& members, generation_record& next) const;
  std::size_t admit_waiting(clock::time_point now, generation_record& next) const;
  void propose_record(const generation_record& next);
  void send_heartbeat(clock::time_point now);
  // Ends this process's part in the job.
  void finish(exit_reason reason, const std::string& text);
  [[nodiscard]] bool suspects_most(const heartbeat& message) const;
  [[nodiscard]] bool has_recent_heartbeat(clock::time_point now, member_id peer) const;
  [[nodiscard]] std::string name(member_id peer) const;
  [[nodiscard]] std::string describe_change(const std::vector<member_id>& leavers, std::size_t joiners) const;

  member self_;
  membership_policy policy_;
  membership_outlet& outlet_;

  std::uint64_t version_ = 0;  // the store's version of `record_`
  generation_record record_;
  std::unordered_map<member_id, std::size_t> ranks_;  // ranks of the record's members
  std::optional<std::size_t> rank_;                   // this process's rank; empty unless it is a member
  std::vector<member_id> monitors_;                   // receive each heartbeat of this member
  std::vector<member_id> rotating_recipients_;        // members and waiting processes that receive heartbeats in turn
  std::set<member_id> monitored_;                     // members that this one monitors
  bool swapping_ = false;                             // true while the result of a swap is unknown
  clock::time_point swap_after_{};                    // earliest time of the next swap, after a failure of the store
  std::set<member_id> former_members_;  // members of former generations; their late heartbeats are ignored

  // State of the present generation.
  std::unordered_map<member_id, view> views_;  // by sender of heartbeats
  std::set<member_id> dead_;
  std::map<member_id, std::string> suspects_;
  std::set<member_id>
      cleared_by_heartbeat_;  // suspects that are cleared by their next heartbeat: the reason is missing heartbeats
  struct broken_connection {
    clock::time_point at;
    std::string reason;
  };
  // Suspicions of the previous generation and of earlier ones back to the last committed step; the lesser id first.
  std::set<std::pair<member_id, member_id>> former_suspicions_;
  std::map<member_id, broken_connection> broken_connections_;  // by peer
  std::map<member_id, std::string> slow_;                      // reason by slow member
  double slow_above_ = 0;                   // slow limit, microseconds of a step, by the last heartbeats; 0: unknown
  std::map<member_id, int> slow_links_;     // slow connections by member, over all generations
  clock::time_point slow_link_reported_{};  // when this member was notified of the last slow connection
  std::set<member_id> reported_links_;      // members whose slow connection was reported
  heartbeat own_;                           // this member's next heartbeat; `send_heartbeat` sets `dead` and `suspects`
  bool must_stop_ = false;
  bool ended_ = false;
  bool another_leaves_ = false;  // set when another member requests to leave
  std::uint64_t furthest_ = 0;   // highest step in the members' heartbeats
  clock::time_point change_began_{};

  std::size_t turn_ = 0;             // index in `rotating_recipients_` of the next recipient
  clock::time_point waiting_since_;  // when this process began to wait for its first generation
  clock::time_point last_wake_;      // time of the last `wake`
  clock::time_point last_sent_{};    // time of the last heartbeat
};

}}}  // namespace muster::v0::elastic

#include <muster/elastic/membership/detail/membership-inl.hpp>
#include <muster/elastic/membership/membership_proposal.hpp>
#include <muster/elastic/membership/membership_slow.hpp>
