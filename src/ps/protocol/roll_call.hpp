// Who was heard, and when.
#pragma once

#include <utility>
#include <vector>

#include <muster/core/clock.hpp>

#include "member.hpp"

namespace muster::inline v0::ps {

/// When each place was heard last. Not thread safe; O(1) a word.
class roll_call {
 public:
  /// It is expected to be heard from now on, unless it was before.
  void expect(const member& who, clock::time_point now) {
    auto& one = at(who.at);
    if (one.incarnation != who.incarnation) one = {who.incarnation, now};
  }
  void hear(const member& who, clock::time_point now) { at(who.at) = {who.incarnation, now}; }
  /// Time passes. A process that was itself away for a good part of `silence` heard no other one, which is no fault of
  /// theirs: true then.
  bool tick(clock::time_point now, clock::duration silence) {
    const bool was_away = now - ticked_ > silence / 4;
    if (was_away) {
      for (auto& one : heard_) one.when = now;
    }
    return std::exchange(ticked_, now) != clock::time_point{} && was_away;
  }
  /// When it was heard last, or was first expected; the beginning of time when it never was.
  [[nodiscard]] clock::time_point last(const member& who) const {
    return who.at < heard_.size() && heard_[who.at].incarnation == who.incarnation ? heard_[who.at].when
                                                                                   : clock::time_point{};
  }
  [[nodiscard]] bool is_silent(const member& who, clock::time_point now, clock::duration longer_than) const {
    return who.at < heard_.size() && heard_[who.at].incarnation == who.incarnation &&
           now - heard_[who.at].when > longer_than;
  }

 private:
  struct entry {
    std::uint32_t incarnation = 0;
    clock::time_point when{};
  };
  entry& at(place who) {
    if (heard_.size() <= who) heard_.resize(who + 1);
    return heard_[who];
  }

  std::vector<entry> heard_;
  clock::time_point ticked_{};
};

}  // namespace muster::inline v0::ps
