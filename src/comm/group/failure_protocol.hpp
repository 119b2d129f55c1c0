// What the ranks of a group tell each other beside their messages: where each stands, and why one ends.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/transport.hpp>
#include <muster/core/clock.hpp>

#include "call_history.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// How a peer left the group.
struct departure {
  int status = 0;
  bool first_hand = false;  ///< it had a reason of its own; otherwise it followed another rank's
  std::string text;
};

/// Finds out by control messages which rank is missing, which disagrees and which has failed. A group fails once, by
/// the first cause that this rank has or hears of; the ranks that have one of their own tell all others, which follow.
class failure_protocol {
 public:
  explicit failure_protocol(transport& transport);

  /// The calls of this rank.
  [[nodiscard]] call_history& calls() noexcept { return calls_; }
  [[nodiscard]] const call_history& calls() const noexcept { return calls_; }
  /// Tells the peers that this rank waits in this call: they compare.
  void tell_position(const collective_signature& signature) const noexcept;
  /// Tells the peers that this rank leaves the group.
  void leave() noexcept;
  /// A rank that left before it made all calls of this one.
  struct leaver {
    int rank;
    std::uint64_t calls;
    clock::time_point until;  ///< it may say why in the group that this one was made from
  };
  /// The first of them; null where there is none.
  [[nodiscard]] const leaver* find_leaver() const noexcept;
  /// Fails the group for want of that rank.
  void lose(const leaver& rank) noexcept;
  /// Throws the timeout of a call: it names the ranks that were not seen in it or in a later one.
  [[noreturn]] void time_out(const collective_signature& signature, seconds timeout) const;

  /// Takes a control message, which may fail the group.
  void hear(const control_message& message);
  /// Fails the group, once. `follows`: another rank's reason, which all members have heard or will hear from that rank.
  void fail(std::exception_ptr cause, bool follows = false) noexcept;
  /// Fails the group for this reason of the caller's.
  void abort(std::string_view reason, int status) noexcept;
  /// Null while the group has not failed.
  [[nodiscard]] const std::exception_ptr& failure() const noexcept { return failure_; }
  /// Whether the failure is another rank's reason, not one of this rank's own.
  [[nodiscard]] bool follows() const noexcept { return follows_; }
  /// After a failure: waits until every peer has said how it leaves, or until the deadline.
  const std::vector<std::optional<departure>>& await_departures(clock::time_point until) noexcept;

 private:
  void compare_position(int peer, const collective_signature& theirs);
  void tell_all(const control_message& message) const noexcept;
  void tell_end(control_message::kind what, int status, std::string_view text) const noexcept;

  transport& transport_;
  std::exception_ptr failure_;
  bool follows_ = false;
  std::vector<std::optional<departure>> departures_;
  std::vector<leaver> leavers_;  // in the order in which they left, whether they are needed or not
  call_history calls_;
  std::vector<std::uint64_t> reached_;  // by peer: it was seen in this collective; 0 nothing yet, else sequence + 1
};

}}}  // namespace muster::v0::detail
