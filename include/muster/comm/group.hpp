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

namespace muster { inline namespace v0 {

namespace detail {
class group_state;
}

/// Options of one call; the last argument of every collective.
struct options {
  /// Which algorithm; `automatic` leaves it to the group's choice.
  muster::algorithm algorithm = muster::algorithm::automatic;
  /// Deadline, from this rank's first wait or test (or its progress thread's) after earlier calls; 0 means the group's.
  seconds timeout{0};
};

/// Settings of a group, for all calls on it.
struct group_settings {
  seconds timeout{30};
  /// The algorithms; a single one is for every collective that has it. The group chooses where no rule applies.
  algorithm_rules algorithm{};
  /// Compare the arguments of all ranks before each native collective too, at the price of a barrier. The library's own
  /// algorithms compare them in every message, at no price.
  bool check_full = false;
  /// A progress thread of the group advances `_async` collectives while this rank computes; it starts with the first of
  /// them, and runs user-defined operations too. Only over transports with `concurrent_groups`; the program does not
  /// use the transport itself while collectives are outstanding then.
  bool progress_thread = false;
};

/// Ranks that call collectives together: all of them, each the same calls in the same order. A handle: copies are not
/// made, moves are cheap, and the group lives until the handle and every `work` on it are destroyed.
///
/// Used by one thread at a time. After an error every further call on the group, at every rank, throws the first cause.
class group {
 public:
  /// A group over a transport that the program made; the world of a context is `context::world`. Throws
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
  /// Collective. A group of the same ranks with its own order of calls, for a part of a program that makes its calls
  /// independently of the others.
  [[nodiscard]] group duplicate();

  /// Collectives started on this group so far, which is the sequence number of the next one.
  [[nodiscard]] std::uint64_t sequence() const noexcept;
  [[nodiscard]] const group_settings& settings() const noexcept;
  /// Applies to later calls; the same at every rank. Throws as the constructor does, and then changes nothing.
  void set_settings(const group_settings& settings);
  [[nodiscard]] transport_abilities abilities() const;
  /// The algorithm of a call with a whole buffer of this size.
  [[nodiscard]] algorithm chosen(collective kind, std::size_t bytes) const;

  /// Aborts the group: every rank that waits in it gets a peer_failure that names this rank and the reason, and all
  /// further calls throw it. `status` is the exit status of that error. Does not wait; safe to call twice.
  void abort(std::string_view reason, int status = 1) noexcept;
  /// Whether an error has ended this group.
  [[nodiscard]] bool failed() const noexcept;

  /// The transport, for messages beside collectives (tags above 0).
  [[nodiscard]] muster::transport& transport() noexcept;

  /// For the collectives.
  [[nodiscard]] const std::shared_ptr<detail::group_state>& state() const noexcept { return state_; }
  /// For the library, which makes groups from others and such that another thread may end.
  explicit group(std::shared_ptr<detail::group_state> state) noexcept;

 private:
  std::shared_ptr<detail::group_state> state_;
};

}}  // namespace muster::v0
