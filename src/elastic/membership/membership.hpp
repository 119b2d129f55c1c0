// How a group decides on its members: the protocol alone, without sockets, clocks or threads.
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

#include "record.hpp"

namespace muster { inline namespace v0 { namespace elastic {

/// What a job allows.
struct membership_policy {
  int initial = 1;  ///< members of the first generation
  int min = 1;      ///< with fewer it waits
  int max = 1 << 20;
  clock::duration beat = std::chrono::milliseconds(100);  ///< from one heartbeat to the next
  clock::duration suspicion_timeout =
      std::chrono::milliseconds(500);  ///< a member that was not heard for so long is suspect
  double slow_factor = 0;              ///< a slow member takes so many times as long as the median; 0: none is slow
  bool slow_ones_leave = false;        ///< instead of being reported alone
  clock::duration quorum_timeout =
      std::chrono::seconds(30);  ///< for a majority and for `min`; half of it for a hung member
  /// So many ranks after a member's own, in a ring, hear all its heartbeats and judge its silence. A dead host of so
  /// many ranks has each of them watched from outside.
  int monitors = 16;

  /// How long a member of this very host may be silent. Its death is seen there, and so is that it was stopped: silence
  /// alone is most of all a sign of an overloaded host, where to kill a healthy process would help no member.
  [[nodiscard]] clock::duration suspicion_timeout_here() const {
    return std::max(4 * suspicion_timeout, quorum_timeout / 2);
  }
};

/// What the protocol wants done; see `membership`. Called during its events, which the outlet starts none of by itself.
class membership_outlet {
 public:
  virtual ~membership_outlet() = default;

  /// To these of the record, members and waiting.
  virtual void say(const heartbeat& what, const std::vector<member_id>& to) = 0;
  /// The store's record becomes `next`, if its version still is `expected`. Whatever comes of it is told by `learn`, or
  /// `store_failed`.
  virtual void swap(std::uint64_t expected, const generation_record& next) = 0;
  /// Take no more part in this generation, at once: abort the group, wake every wait. Then `stopped`.
  virtual void stop(const std::string& why) = 0;
  /// Stop after that step, or after the first later one that is complete.
  virtual void halt(std::uint64_t step) = 0;
  /// A suspect of this very host.
  virtual void kill(const member& peer) = 0;
  /// Tell people.
  virtual void note(const std::string& text) = 0;
  /// Build the group of that generation.
  virtual void form(const generation_record& group) = 0;
  /// Nothing more is to come. `is_first`: of those that end alike, as far as this member knows, it is one.
  virtual void end(exit_reason why, const std::string& text, bool is_first) = 0;
};

/// What a member's own part of each of these steps took at least. The shortest does not count where they are several:
/// the last batch of an epoch is small at all members, but comes into their heartbeats one after another.
[[nodiscard]] clock::duration least_work(std::span<const clock::duration> steps) noexcept;

/// One member's side of the protocol: events in, calls of its outlet out. Time is what the caller says it is; nothing
/// waits, so the same code runs in a process and in a simulation.
///
/// A generation ends for a member when it says `stopped`: a promise to take no more part in it, kept whatever happens.
/// A step commits somewhere only when every member took part, so from the first such heartbeat on no further step of
/// that generation begins, and members differ by at most one step. When all that are not dead, suspect or leaving have
/// stopped, the first of them writes the next generation, which only succeeds on the record it knows. Members that are
/// in it go on; members that are not see that they are fenced.
///
/// Proof of death comes from the victim's own host and needs no consent. A suspicion (silence, a broken
/// connection, no progress) counts when a strict majority of the members not proven dead shares it; of two, where there
/// is none, the first to reach the store stays. A suspect on this member's host is killed instead, which makes it
/// proof. A member that hears both sides of a partition takes that of the first member after a while, so that there is
/// a majority: where the same two part again, or no majority is found at once. A member that goes on to suspect most of
/// the others is suspect itself: it is heard, and does not hear.
///
/// While nothing changes a heartbeat goes to the monitors of its sender and to a few others in turn, so that all learn
/// of all in time. As long as one member lives, some rank that fell silent comes just before one that lives and watches
/// it. From the first reason to stop until the next generation, and for a request, heartbeats go to all, and all judge
/// all: of a member that it did not watch before, and has not heard since, a member believes most of its monitors. In a
/// job of no more members than monitors each watches all others.
///
/// Not thread safe. To hear a heartbeat is O(1) for it and each of the dead that it names; what follows from it comes
/// with the next tick. A tick is O(monitors), and O(members) once a beat, for slow ones; in a change each is
/// O(members).
class membership {
 public:
  membership(member self, membership_policy policy, membership_outlet& out, clock::time_point now);

  // ---- events ----
  /// First of the events of one turn: a turn that comes late (this process was stopped, or its host suspended) does not
  /// count its own gap as the silence of others.
  void wake(clock::time_point now);
  /// Time passes; at least once a beat, and after what was heard.
  void tick(clock::time_point now);
  void hear(clock::time_point now, const heartbeat& said);
  /// The record as the store has it; version 0: there is none.
  void learn(clock::time_point now, std::uint64_t version, const generation_record& record);
  /// A swap came to nothing that is known; the record is to be tried again.
  void store_failed(clock::time_point now);
  /// The store has another job's table by now: this process has no part in it.
  void left_behind(const std::string& why);
  /// Its process has ended: seen on its own host.
  void prove_dead(clock::time_point now, member_id peer);
  void suspect(clock::time_point now, member_id peer, const std::string& why);
  /// The connection to it broke: this generation is over, and the member is suspect unless it is heard within a beat.
  void disconnected(clock::time_point now, member_id peer, const std::string& why);
  /// This member's state is now complete after so many steps.
  void committed(std::uint64_t step, std::uint64_t cursor);
  /// How long its own part of a step took at least in the last steps, without waiting for others.
  void worked(clock::duration least);
  /// Of its connections with much traffic the slowest, which leads to no member (0) where none has, and the bandwidth
  /// that the best of them has at any time: bytes a second.
  void judged(const link_seen& slowest, std::uint64_t usual);
  /// It takes no more part in the present generation; its step is final. Also without having been asked.
  void stopped(clock::time_point now);
  /// It wants to leave at the next boundary.
  void leave(clock::time_point now);

  /// Where it waits for the members of the next generation; what it says from now on tells them.
  void wait_at(std::string endpoints);

  // ---- what it knows ----
  [[nodiscard]] const generation_record& record() const noexcept { return record_; }
  [[nodiscard]] bool is_member() const noexcept { return rank_.has_value(); }
  [[nodiscard]] bool is_in(member_id peer) const { return ranks_.contains(peer); }
  [[nodiscard]] bool has_stopped() const noexcept { return own_.stopped; }
  [[nodiscard]] bool has_ended() const noexcept { return ended_; }
  [[nodiscard]] bool is_dead(member_id peer) const { return dead_.contains(peer); }
  [[nodiscard]] bool is_suspect(member_id peer) const { return suspects_.contains(peer); }
  /// Whether it wants to leave, and no member gains by waiting: all others that live want to leave too, as far as they
  /// say, or one that does not has stopped and waits for a group without it.
  [[nodiscard]] bool may_go() const;
  /// Whether nothing came for as long as the silence that makes it suspect elsewhere from a member that this one
  /// watches.
  [[nodiscard]] bool is_silent(clock::time_point now, member_id peer) const {
    return (must_stop_ || watched_.contains(peer)) && !is_heard(now, peer);
  }
  /// Why a member is suspect or dead; empty for none.
  [[nodiscard]] std::string reason_for(member_id peer) const;
  /// What that member said last in this generation; empty heartbeat for nothing.
  [[nodiscard]] const heartbeat& heartbeat_of(member_id peer) const;
  /// When the present change began for this member: it found or heard of the first reason to stop.
  [[nodiscard]] clock::time_point change_began() const noexcept { return change_began_; }

 private:
  struct view {
    heartbeat last;
    clock::time_point heard;
    std::optional<clock::time_point> alone_since{};  // it suspects most members, in each heartbeat since then
  };

  void announce(clock::time_point now);
  void form_first(clock::time_point now);
  void enter(clock::time_point now, const generation_record& next);
  void adopt(const generation_record& record);
  void read(clock::time_point now, const heartbeat& said);
  void look(clock::time_point now);
  void find_silent_members(clock::time_point now);
  void plan_reconfiguration(clock::time_point now);
  static constexpr const char* connections_are_slow = "its connections are slow";
  [[nodiscard]] bool has_become_slow() const;
  void find_slow_members(clock::time_point now);
  void find_slow_links(clock::time_point now);
  [[nodiscard]] bool can_be_spared(clock::time_point now) const;
  void let_leave(clock::time_point now, const member& slow, const std::string& why);
  void need_stop(clock::time_point now, const std::string& why);
  void begin_change(clock::time_point now);
  [[nodiscard]] bool is_given_up(const member& one) const;
  void adopt_suspicions(clock::time_point now);
  /// The members of a generation that is over.
  struct parting {
    std::vector<member> staying;
    std::vector<member_id> leaving;
    std::vector<member_id> accused;  // suspects
    std::size_t alive = 0;           // not proven dead
  };
  void propose(clock::time_point now);
  [[nodiscard]] std::optional<parting> parted() const;
  [[nodiscard]] bool keep_the_state(parting& of) const;
  [[nodiscard]] bool most_agree(const parting& of) const;
  void find_state_sources(const parting& of, generation_record& next) const;
  std::size_t take_in(clock::time_point now, generation_record& next) const;
  void swap(const generation_record& next);
  void say(clock::time_point now);
  void finish(exit_reason why, const std::string& text);
  [[nodiscard]] bool suspects_most(const heartbeat& said) const;
  [[nodiscard]] bool is_heard(clock::time_point now, member_id peer) const;
  [[nodiscard]] std::string name(member_id peer) const;
  [[nodiscard]] std::string describe_change(const std::vector<member_id>& leavers, std::size_t joiners) const;

  member self_;
  membership_policy policy_;
  membership_outlet& out_;

  std::uint64_t version_ = 0;
  generation_record record_;
  std::unordered_map<member_id, std::size_t> ranks_;  // of the record's members
  std::optional<std::size_t> rank_;                   // this member's
  std::vector<member_id> monitors_;                   // hear each of its heartbeats
  std::vector<member_id> others_;                     // members and waiting: hear one now and then
  std::set<member_id> watched_;                       // have it as a monitor
  bool swapping_ = false;
  clock::time_point swap_after_{};  // not before: the store was in trouble
  std::set<member_id> gone_;        // of former generations: whatever still comes from them is old

  // Of the present generation.
  std::unordered_map<member_id, view> views_;
  std::set<member_id> dead_;
  std::map<member_id, std::string> suspects_;
  std::set<member_id> silent_;  // suspects for that alone
  struct cut {
    clock::time_point at;
    std::string why;
  };
  // Suspicions of the generation before, and of those before it since a step was committed; the lesser id first.
  std::set<std::pair<member_id, member_id>> accused_before_;
  std::map<member_id, cut> cut_;  // members that this one's connection to broke
  std::map<member_id, std::string> slow_;
  double slow_above_ = 0;                // microseconds of a step, as of the last heartbeats; 0: not known yet
  std::map<member_id, int> slow_links_;  // how often one ended there, in this generation and those before
  clock::time_point slow_said_{};        // when this member heard of the last one
  std::set<member_id> told_of_;          // ranks at which a slow one begins
  heartbeat own_;                        // what it says next: its dead and suspects are filled in then
  bool must_stop_ = false;
  bool ended_ = false;
  bool wish_ = false;           // a member wants to leave
  std::uint64_t furthest_ = 0;  // of the steps that members told of
  clock::time_point change_began_{};

  std::size_t turn_ = 0;  // among the others
  clock::time_point began_;
  clock::time_point ticked_;
  clock::time_point said_{};
};

}}}  // namespace muster::v0::elastic
