// The state of a training: its parts, and how a step changes them and commits.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/training_position.hpp>
#include <muster/data/cursor.hpp>

namespace muster { inline namespace v0 {

class group;
class step;

/// The ranks that a part of the state belongs to.
enum class state_kind : std::uint8_t {
  replicated = 0,  ///< the same bytes at every rank after every step
  rank_local = 1   ///< each rank's own: lost when the rank dies, and in its initial state at a rank that joins
};

/// How a part is restored when a step that changed it fails.
enum class in_step : std::uint8_t {
  restore_on_failure,  ///< the state copies it before each step and restores the copy when the step fails
  keep_on_failure      ///< its owner changes it only when the step commits, or undoes changes (`state_parts::hook`)
};

/// One named part of a state: bytes at a fixed place for the life of the state, or, where `save` is given, something of
/// variable size that is serialised by `save` and `load`.
struct state_part {
  std::string name;
  state_kind kind = state_kind::replicated;
  in_step change = in_step::restore_on_failure;
  std::span<std::byte> bytes{};
  std::function<std::vector<std::byte>()> save{};
  std::function<void(std::span<const std::byte>)> load{};
};

/// A property of a state that is the same at all ranks; see `state_parts::add_property`.
struct state_property {
  std::string name;
  std::string value;

  friend bool operator==(const state_property&, const state_property&) = default;
};

/// Collects the parts of an owner of state; see `state_owner`.
class state_parts {
 public:
  /// Values at a fixed place for the life of the state, which are hashed, sent and saved as bytes. A step may change
  /// them at any point; large values are, if their owner defers changes to the commit, `keep_on_failure` and not
  /// copied.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(std::string name, std::span<T> values, state_kind kind = state_kind::replicated,
           in_step change = in_step::restore_on_failure) {
    parts_.push_back({std::move(name), kind, change, std::as_writable_bytes(values), {}, {}});
  }
  /// A part of variable size. `load` gets the bytes of a `save`, perhaps of another process; if they do not fit it
  /// throws configuration_error and changes nothing. Restored on failure, it is saved before each step.
  void add(std::string name, state_kind kind, std::function<std::vector<std::byte>()> save,
           std::function<void(std::span<const std::byte>)> load, in_step change = in_step::keep_on_failure) {
    parts_.push_back({std::move(name), kind, change, {}, std::move(save), std::move(load)});
  }
  /// A property of the owner that is not saved and is the same at all ranks, such as an option: ranks compare it before
  /// they train together, and their error names the first that differs.
  void add_property(std::string name, std::string value) { properties_.push_back({std::move(name), std::move(value)}); }
  /// For owners that keep the changes of a step apart until it commits: `begin` is called before a step starts, `adopt`
  /// when it commits, `discard` when it failed or before it is repeated. None throws. Each may be empty.
  void hook(std::function<void()> adopt, std::function<void()> discard, std::function<void()> begin = {}) {
    hooks_.push_back({std::move(begin), std::move(adopt), std::move(discard)});
  }
  /// For owners that exchange changes of a step between ranks, such as averages of weights: called at all ranks after
  /// the function of the step and before the commit. Collective; if it throws, the step fails. The parts that it
  /// changes are restored on failure.
  void exchange(std::function<void(group&)> among) { exchanges_.push_back(std::move(among)); }
  /// For owners that have to know the ranks of a step before it begins, such as what each of them can read: called at
  /// all ranks before the function of a step that may commit. Collective; if it throws, the step fails.
  void meet(std::function<void(step&)> with) { meetings_.push_back(std::move(with)); }
  /// The position in the data. Throws configuration_error when the state has one already.
  void add(const live_cursor& at);

 private:
  friend class state;
  struct hooks {
    std::function<void()> begin;
    std::function<void()> adopt;
    std::function<void()> discard;
  };
  std::vector<state_part> parts_;
  std::vector<state_property> properties_;
  std::vector<hooks> hooks_;
  std::vector<std::function<void(group&)>> exchanges_;
  std::vector<std::function<void(step&)>> meetings_;
  std::optional<live_cursor> cursor_;
};

/// A member of a `state`: adds its parts in `describe`, the same parts in the same order at every call. Parts may be
/// added with use (an optimizer's arrays), but none disappears. A step that fails in which a part was added that is
/// restored on failure ends the run, since there is no copy to restore.
template <class T>
concept state_owner = std::same_as<std::remove_cvref_t<T>, live_cursor> || requires(T& owner, state_parts& parts) {
  owner.describe(parts);
};

/// A state_owner for values that a step changes before it commits, such as the running mean and variance of batch
/// normalisation; a model's `batch_norm()` may return one.
template <class T>
struct restored_values {
  std::string name;
  std::span<T> values;
  state_kind kind = state_kind::replicated;

  /// Adds the values under `name`, as state_owner has it.
  void describe(state_parts& parts) { parts.add(name, values, kind); }
};
/// The element type is that of the span.
template <class T>
restored_values(std::string, std::span<T>, state_kind = state_kind::replicated) -> restored_values<T>;
static_assert(state_owner<restored_values<float>>);

/// The progress of a state: survivors compare it, and checkpoints begin with it.
struct state_position {
  std::uint64_t steps = 0;        ///< committed steps
  std::uint32_t evaluations = 0;  ///< calls of `session::evaluate` finished since the program started
  std::uint32_t runs = 0;         ///< calls of `session::run` finished since then
  cursor at{};                    ///< in the data; default-constructed without data

  friend bool operator==(const state_position&, const state_position&) = default;
  /// Whether a rank at this position is further than one at `there`.
  [[nodiscard]] bool is_beyond(const state_position& there) const noexcept {
    return std::tie(steps, evaluations, runs, at.epoch, at.position) >
           std::tie(there.steps, there.evaluations, there.runs, there.at.epoch, there.at.position);
  }
};
static_assert(std::is_trivially_copyable_v<state_position>);
static_assert(std::has_unique_object_representations_v<state_position>, "checkpoints have its bytes");

/// Everything that must survive a failed step, the death of a rank or a restart:
///
///     muster::state state{arena, optimizer, model.batch_norm(), loader.cursor()};
///
/// Owners that are lvalues are referenced and must outlive it; temporaries, such as the last two, are stored in it.
/// A step either commits (the cursor moves, owners adopt changes) or did not happen (restored on failure parts are
/// restored). Used by the thread that is the rank.
class state {
 public:
  /// Of at least one owner. Throws configuration_error when two parts have one name.
  template <class... Owners>
  requires(sizeof...(Owners) > 0 && (state_owner<Owners> && ...) &&
           !(std::same_as<std::remove_cvref_t<Owners>, state> || ...)) explicit state(Owners&&... owners) {
    (owners_.push_back(describer(std::forward<Owners>(owners))), ...);
    (void)parts();
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  /// The parts, in the order of the owners; calls `describe` of each. Throws configuration_error for equal names, and
  /// within a step that may commit; in an evaluation these are the parts of its begin.
  [[nodiscard]] const std::vector<state_part>& parts();
  /// The parts of the last such call.
  [[nodiscard]] const std::vector<state_part>& parts() const noexcept { return has_.parts_; }
  /// The properties of the last call of `parts`: what its owners have added, its replicated parts, and its data.
  [[nodiscard]] std::vector<state_property> properties() const;
  /// Of all replicated parts, the steps and the cursor: equal at all ranks of a training. Reads all bytes. Throws
  /// configuration_error within a step that may commit, whose changes are not all of the state yet.
  [[nodiscard]] std::uint64_t digest();

  /// Steps committed.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  [[nodiscard]] state_position position() const;
  /// How far schedules are told that it is.
  [[nodiscard]] training_position progress() const;
  /// Goes where `there` says, after the parts were filled with what goes with it. Throws what the loader throws for a
  /// cursor that is not of its data, and is where it was then.
  void move_to(const state_position& there);

  /// Whether it has a cursor. What is below is about that one.
  [[nodiscard]] bool has_data() const noexcept { return has_.cursor_.has_value(); }
  /// Whether no batch of the epoch is left.
  [[nodiscard]] bool epoch_is_over() const;
  /// Goes to the start of the next epoch.
  void next_epoch();

  /// The life of a step, for sessions: what it may change is copied; the ranks agree on what it needs; they exchange
  /// what they have made; and then either the copy is dropped, the owners adopt what they kept apart and the cursor
  /// moves past its batch; or all is put back. `roll_back` does nothing when no step has begun. An evaluation is a step
  /// that does not commit.
  void begin_step(bool commits = true);
  void meet(step& with);
  void exchange(group& among);
  void commit_step();
  void roll_back() noexcept;
  /// After a failed step that is to be run again: throws configuration_error when a part that is restored on failure
  /// came in it, so that there was no copy to restore.
  void require_restored();
  /// The end of an evaluation, which is rolled back and counted; and of a run.
  void finish_evaluation() noexcept;
  void finish_run() noexcept { ++runs_; }

  /// Where the run began that a rank is in.
  struct run_start {
    std::uint64_t steps = 0;
    std::uint64_t epoch = 0;
  };
  /// Of this rank: set and taken back by `session::run`. A rank that copies this state has to end that run where this
  /// rank does, and cannot tell from the position: after the last step of an epoch it is that of the next run's start.
  [[nodiscard]] const std::optional<run_start>& run() const noexcept { return run_; }
  void set_run(const std::optional<run_start>& began) noexcept { run_ = began; }
  /// Of the rank that this one's state was copied from, until `followed_run` takes it.
  void follow_run(const std::optional<run_start>& theirs) noexcept { followed_ = theirs; }
  [[nodiscard]] std::optional<run_start> followed_run() noexcept { return std::exchange(followed_, std::nullopt); }

 private:
  // What adds the parts of an owner, which is referenced or stored.
  template <class T>
  static std::function<void(state_parts&)> describer(T&& given) {
    const auto describe = [](auto& owner, state_parts& parts) {
      if constexpr (std::same_as<std::remove_cvref_t<T>, live_cursor>)
        parts.add(owner);
      else
        owner.describe(parts);
    };
    if constexpr (std::is_lvalue_reference_v<T>)
      return [&given, describe](state_parts& parts) { describe(given, parts); };
    else
      return [kept = std::make_shared<T>(std::move(given)), describe](state_parts& parts) { describe(*kept, parts); };
  }

  std::vector<std::function<void(state_parts&)>> owners_;
  state_parts has_;                             // by the last call of `parts`
  std::vector<std::vector<std::byte>> shadow_;  // by part: the copy of one that is restored on failure
  bool in_step_ = false;
  bool commits_ = false;     // the step under way may
  std::uint64_t begun_ = 0;  // steps and evaluations
  std::uint64_t steps_ = 0;
  std::uint32_t evaluations_ = 0;
  std::uint32_t runs_ = 0;
  std::optional<run_start> run_;
  std::optional<run_start> followed_;
};

}}  // namespace muster::v0
