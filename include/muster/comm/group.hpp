// A group of ranks, on which collectives are called.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

namespace detail {
class group_state;
}

/// Options of a call; the last argument of every collective.
struct collective_options {
  /// The algorithm; `automatic` leaves the choice to the group.
  muster::algorithm algorithm = muster::algorithm::automatic;
  /// Time limit of the call, counted from this rank's first wait or test (or its progress thread's) at which all
  /// earlier calls are done; 0 means the group's.
  seconds timeout{0};
  /// Set for a sum or mean with the same bits for any number of ranks, algorithm, transport and division into calls:
  /// the exact sum of each element, rounded once. Throws configuration_error for other operations on floating-point
  /// numbers and for functions of the program; the results of integers are the same in any case.
  bool reproducible = false;
};

/// Settings of a group, for all calls on it.
struct group_settings {
  seconds timeout{30};  ///< time limit of each call, see `collective_options::timeout`
  /// The algorithms; a single algorithm applies to every collective that has it. The group chooses if no rule applies.
  algorithm_rules algorithm{};
  /// Set to compare all ranks' arguments before each native collective too, at the price of a barrier. The library's
  /// own algorithms compare the arguments in every message, at no price, and so do transports with `prefers_native`.
  bool check_full = false;
  /// Set to have a progress thread of the group advance `_async` collectives while this rank computes. The thread
  /// starts with the first such collective, and runs user-defined operations too. Only over transports with
  /// `concurrent_groups`; then the program does not use the transport itself while collectives are outstanding.
  bool progress_thread = false;
};

/// Ranks that call collectives together: all ranks make the same calls in the same order. A handle: it cannot be
/// copied, moves are cheap, and the group lives until the handle and every `work` on the group are destroyed.
///
/// Used by one thread at a time. After an error every further call on the group, at every rank, throws the first cause.
/// A configuration_error for wrong arguments of a call does not end the group.
class group {
 public:
  /// Makes a group over a transport that the program made; the world of a context is `context::world`. Throws
  /// configuration_error when the settings request native and the transport has no native collectives, and for a
  /// timeout that is not above 0.
  explicit group(std::unique_ptr<muster::transport> transport, const group_settings& settings = {});
  group(group&&) noexcept;
  group& operator=(group&&) noexcept;
  ~group();

  /// Returns this rank's number in the group, from 0, and the number of ranks. Both are constant while the group lives.
  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;

  /// Splits the group. Collective. The ranks that pass the same `color` form a group, numbered by `key` and then by
  /// their rank here; a rank that passes a negative color gets a group with itself alone. The new group inherits the
  /// settings. When this group fails, the new group fails too, except a group of a negative color.
  [[nodiscard]] group split(int color, int key = 0);
  /// Makes a group of the same ranks with its own order of calls, for a part of a program that makes its calls
  /// independently of the others. Collective.
  [[nodiscard]] group duplicate();

  /// Returns the number of collectives started on this group so far, which is the sequence number of the next
  /// collective.
  [[nodiscard]] std::uint64_t sequence() const noexcept;
  [[nodiscard]] const group_settings& settings() const noexcept;
  /// Changes the settings of later calls; the settings must be the same at every rank. Throws as the constructor does,
  /// and then changes nothing.
  void set_settings(const group_settings& settings);
  [[nodiscard]] transport_abilities abilities() const;
  /// Returns the algorithm for a call whose larger buffer has `bytes` bytes.
  [[nodiscard]] algorithm chosen(collective kind, std::size_t bytes) const;

  /// Aborts the group: every rank that waits in the group gets a peer_failure that names this rank and the reason, and
  /// all further calls throw it. `status` is the error's exit status. Does not wait; safe to call twice.
  void abort(std::string_view reason, int status = 1) noexcept;
  /// Returns true if an error has ended this group.
  [[nodiscard]] bool failed() const noexcept;

  /// Returns the transport, for messages beside collectives (tags above 0).
  [[nodiscard]] muster::transport& transport() noexcept;

  /// Returns the implementation, for the collectives.
  [[nodiscard]] const std::shared_ptr<detail::group_state>& state() const noexcept { return state_; }
  /// Wraps an implementation. For the library, which makes child groups and groups that another thread may end.
  explicit group(std::shared_ptr<detail::group_state> state) noexcept;

 private:
  std::shared_ptr<detail::group_state> state_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
