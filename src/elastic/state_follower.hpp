// How a process that joins gets to where the others are, while they go on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/elastic/state.hpp>

#include "state_line.hpp"

namespace muster::inline v0::detail {

/// Copies a snapshot of the state from all members at once, a share from each, into the state itself, and does to it
/// again what every later step did. What comes of it is for `transfer_state` to compare and to mend. Of the thread that
/// is the rank.
class state_follower {
 public:
  /// `cards`: of the members' state_servers. Agrees with all of them on a step; throws error when that fails, a state
  /// cannot be followed, or `given_up` says so; then nothing was changed.
  state_follower(state& of, std::span<const std::string> cards, std::string_view token,
                 const std::function<bool()>& given_up);
  state_follower(const state_follower&) = delete;
  state_follower& operator=(const state_follower&) = delete;

  /// Takes what comes, until that time at the latest; false when no more can come.
  bool advance(clock::time_point until);
  /// Whether it has been where the members were, or has kept up with them for a while without ever being at rest.
  [[nodiscard]] bool is_there() const noexcept { return is_there_; }
  /// Takes all that the members did before they left that generation, as long as nothing is missing for longer than
  /// `most`.
  void finish(std::uint64_t generation, clock::duration most);

  /// The step that the state is after; 0: the snapshot is not complete.
  [[nodiscard]] std::uint64_t at() const noexcept { return at_; }
  /// Bytes of the snapshot, and how long they took to come.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return size_of(replicated_); }
  [[nodiscard]] clock::duration span() const noexcept { return span_; }
  /// Steps done again.
  [[nodiscard]] std::uint64_t repeated() const noexcept { return repeated_; }

 private:
  struct source {
    explicit source(state_line from) : line(std::move(from)) {}
    state_line line;
    state_message head;
    std::vector<std::span<std::byte>> wanted;  // where the rest of what is under way goes, from `next` on
    std::size_t next = 0;
    bool in_head = true;
    bool waits = false;        // for the others to have what it has
    std::uint64_t paused = 0;  // the last generation that it left
  };

  void agree(state& of, std::span<const std::string> cards, std::string_view token,
             const std::function<bool()>& given_up);
  [[nodiscard]] bool read_some(source& from);
  void look_around(clock::time_point now, bool at_rest) noexcept;
  void begin_message(source& from);
  static void await_head(source& from);
  void step_forward();

  std::vector<state_parts::repeatable> replays_;
  std::vector<std::span<std::byte>> replicated_;
  std::vector<std::span<std::byte>> brought_;
  std::vector<source> sources_;
  std::uint64_t wanted_at_ = 0;
  std::uint64_t at_ = 0;
  std::uint64_t repeated_ = 0;
  std::optional<clock::time_point> began_;  // to come
  clock::time_point snapshot_came_{};
  clock::time_point last_came_{};  // anything
  bool is_there_ = false;
  clock::duration span_{};
  bool over_ = false;
};

}  // namespace muster::inline v0::detail
