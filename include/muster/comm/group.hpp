// A group of ranks: what collectives are called on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/clock.hpp>

namespace muster::inline v0 {

struct algorithm_profile;

namespace detail {
class group_state;
}

/// How one call is done; the last argument of every collective.
struct options {
  /// Which algorithm; `automatic` leaves it to the group's choice.
  muster::algorithm algorithm = muster::algorithm::automatic;
  /// Deadline, from this rank's first wait or test (or its progress thread's) after earlier calls; 0 means the group's.
  seconds timeout{0};
};

/// What all calls on a group have in common.
struct group_settings {
  seconds timeout{30};
  /// What runs by what; one algorithm is for every collective that has it. Where no rule speaks, the group chooses.
  algorithm_rules algorithm{};
  /// Compare the arguments of all ranks before each native collective too, at the price of a barrier. The library's own
  /// algorithms compare them in every message, at no price.
  bool check_full = false;
  /// A thread of the group's own moves `_async` collectives on while this rank computes; it starts with the first of
  /// them. Operations of one's own then run on that thread. Only over transports with `concurrent_groups`; the
  /// transport itself is not to be used while collectives are under way then.
  bool progress_thread = false;
  /// What was measured for this transport and number of ranks, to choose by; where it does not fit, or is null, the
  /// group goes by the constants of the transport.
  std::shared_ptr<const algorithm_profile> profile{};
};

/// Ranks that call collectives together: all of them, each the same calls in the same order. A handle: copies are not
/// made, moves are cheap, and the group lives until the handle and every `work` on it are gone.
///
/// Used by one thread at a time. After an error every further call on the group, at every rank, throws the first cause.
class group {
 public:
  /// A group over a transport of one's own; the world of a context comes from `context::world`. Throws
  /// configuration_error when the settings ask for native and the transport has none.
  explicit group(std::unique_ptr<muster::transport> transport, const group_settings& settings = {});
  group(group&&) noexcept;
  group& operator=(group&&) noexcept;
  ~group();

  /// This rank's number in the group, from 0, and the number of ranks. Both stay as they are while the group lives.
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;

  /// Collective. The ranks that give the same `color` become a group, numbered by `key` and then by their rank here;
  /// one that gives a negative color gets a group of itself alone. Inherits the settings. When this group fails, so
  /// does it.
  [[nodiscard]] group split(int color, int key = 0);
  /// Collective. The same ranks again with an order of calls of its own, so that two parts of a program do not have to
  /// agree on one.
  [[nodiscard]] group duplicate();

  /// How many collectives were started on it: the number the next one gets.
  [[nodiscard]] std::uint64_t sequence() const noexcept;
  [[nodiscard]] const group_settings& settings() const noexcept;
  /// Applies to later calls; the same at every rank. Throws as the constructor does, and then changes nothing.
  void set_settings(const group_settings& settings);
  [[nodiscard]] transport_abilities abilities() const;
  /// What a call over so many bytes (of the whole buffer) would run by.
  [[nodiscard]] algorithm chosen(collective kind, std::size_t bytes) const;

  /// Gives up: wakes every rank that waits in this group with a peer_failure that names this rank and the reason, and
  /// refuses all further calls. `status` is the exit status that goes with it. Does not wait; safe to call twice.
  void abort(std::string_view reason, int status = 1) noexcept;
  /// Whether an error has ended this group.
  [[nodiscard]] bool failed() const noexcept;

  /// The transport, for messages beside collectives (tags above 0).
  [[nodiscard]] muster::transport& transport() noexcept;

  /// For the collectives.
  [[nodiscard]] const std::shared_ptr<detail::group_state>& state() const noexcept { return state_; }

 private:
  explicit group(std::shared_ptr<detail::group_state> state) noexcept;

  std::shared_ptr<detail::group_state> state_;
};

}  // namespace muster::inline v0
