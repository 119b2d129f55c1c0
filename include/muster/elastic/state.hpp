// The state of a training: its parts, and how a step changes and commits them.
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

/// The ranks that own a part of the state.
enum class state_kind : std::uint8_t {
  replicated = 0,  ///< the same bytes at every rank after every step
  rank_local = 1   ///< each rank's own: lost when the rank dies, and in its initial state at a rank that joins
};

/// The way in which a part is restored when a step that changed it fails.
enum class rollback_policy : std::uint8_t {
  restore_on_failure,  ///< the state copies it before each step and restores the copy when the step fails
  keep_on_failure      ///< its owner changes it only when the step commits, or undoes changes (`state_parts::hook`)
};

/// One named part of a state: bytes at a fixed address for the life of the state, or, if `save` is set, an object of
/// variable size that `save` and `load` serialise.
struct state_part {
  std::string name;
  state_kind kind = state_kind::replicated;
  rollback_policy change = rollback_policy::restore_on_failure;
  std::span<std::byte> bytes{};
  std::function<std::vector<std::byte>()> save{};
  std::function<void(std::span<const std::byte>)> load{};
};

/// A property of a state that is the same at all ranks; see `state_parts::add_property`.
struct compared_property {
  std::string name;
  std::string value;

  friend bool operator==(const compared_property&, const compared_property&) = default;
};

/// Collects the parts of an owner of state; see `state_owner`.
class state_parts {
 public:
  /// Adds values at a fixed address for the life of the state, which are hashed, sent and saved as bytes. A step may
  /// change them at any point. An owner of large values that defers its changes to the commit passes `keep_on_failure`,
  /// so that they are not copied.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(std::string name, std::span<T> values, state_kind kind = state_kind::replicated,
           rollback_policy change = rollback_policy::restore_on_failure) {
    parts_.push_back({std::move(name), kind, change, std::as_writable_bytes(values), {}, {}});
  }
  /// Adds a part of variable size. `load` receives the bytes of a `save`, perhaps of another process. If the bytes do
  /// not fit, `load` throws configuration_error and changes nothing. A part that is restored on failure is saved before
  /// each step.
  void add(std::string name, state_kind kind, std::function<std::vector<std::byte>()> save,
           std::function<void(std::span<const std::byte>)> load,
           rollback_policy change = rollback_policy::keep_on_failure) {
    parts_.push_back({std::move(name), kind, change, {}, std::move(save), std::move(load)});
  }
  /// Adds a property of the owner that is not saved and is the same at all ranks, such as an option. Ranks compare the
  /// properties before they train together, and their error names the first that differs.
  void add_property(std::string name, std::string value) { properties_.push_back({std::move(name), std::move(value)}); }
  /// Adds the hooks of an owner that keeps the changes of a step apart until the step commits, such as an arena, which
  /// keeps the updates of the step. `on_begin` is called before
  /// a step or an evaluation starts, `adopt` when it commits, `discard` when it failed or before it is repeated. No
  /// hook may throw: if `adopt` throws, the run ends with that exception, and the state is lost. Each may be empty.
  void hook(std::function<void()> adopt, std::function<void()> discard, std::function<void()> on_begin = {}) {
    hooks_.push_back({std::move(on_begin), std::move(adopt), std::move(discard)});
  }
  /// Adds an exchange of a step's changes between ranks, such as averages of weights. The function is called at all
  /// ranks after the function of the step and before the commit. Collective; if it throws, the step fails. The parts
  /// that it changes are restored on failure.
  void exchange(std::function<void(group&)> function) { exchanges_.push_back(std::move(function)); }
  /// Adds a function that needs the ranks of a step before the step begins, for example to exchange which data each
  /// rank can read. The function is called at all ranks before the function of a step that may commit. Collective; if
  /// it throws, the step fails.
  void before_step(std::function<void(step&)> function) { before_step_functions_.push_back(std::move(function)); }
  /// Adds the position in the data. Throws configuration_error when the state has one already.
  void add(const sampler_handle& sampler);

 private:
  friend class state;
  struct hooks {
    std::function<void()> begin;
    std::function<void()> adopt;
    std::function<void()> discard;
  };
  std::vector<state_part> parts_;
  std::vector<compared_property> properties_;
  std::vector<hooks> hooks_;
  std::vector<std::function<void(group&)>> exchanges_;
  std::vector<std::function<void(step&)>> before_step_functions_;
  std::optional<sampler_handle> cursor_;
};

/// A member of a `state`: its `describe` adds its parts, the same parts in the same order at every call. Later calls
/// may add further parts (an optimizer's arrays), but no part disappears. If a step fails in which a part that is
/// restored on failure was added, the run ends, since there is no copy to restore.
template <class T>
concept state_owner = std::same_as<std::remove_cvref_t<T>, sampler_handle> || requires(T& owner, state_parts& parts) {
  owner.describe(parts);
};

/// A state_owner for values that a step changes before it commits, such as the running mean and variance of batch
/// normalisation; a model's `batch_norm()` may return one.
template <class T>
struct restored_values {
  std::string name;
  std::span<T> values;
  state_kind kind = state_kind::replicated;

  /// Adds the values under `name`, as `state_owner` requires.
  void describe(state_parts& parts) { parts.add(name, values, kind); }
};
/// Deduces the element type from the span.
template <class T>
restored_values(std::string, std::span<T>, state_kind = state_kind::replicated) -> restored_values<T>;
static_assert(state_owner<restored_values<float>>);

/// The progress of a state. Members of a new group compare their positions, and a checkpoint begins with the position.
struct state_position {
  std::uint64_t steps = 0;        ///< committed steps
  std::uint32_t evaluations = 0;  ///< calls of `session::evaluate` finished since the program started
  std::uint32_t runs = 0;         ///< calls of `session::run` finished since then
  cursor data{};                  ///< the position in the data; default-constructed without data

  friend bool operator==(const state_position&, const state_position&) = default;
  /// Returns true if a rank at this position is further than a rank at `other`.
  [[nodiscard]] bool is_beyond(const state_position& other) const noexcept;
};
static_assert(std::is_trivially_copyable_v<state_position>);
static_assert(std::has_unique_object_representations_v<state_position>, "checkpoints have its bytes");

/// The state that must survive a failed step, the death of a rank or a restart:
///
///     muster::state state{arena, optimizer, model.batch_norm(), loader.cursor()};
///
/// Owners that are lvalues are referenced and must outlive it; temporaries, such as the last two, are stored in it. A
/// step either commits (the cursor moves, owners adopt their changes) or has no effect (parts with `restore_on_failure`
/// are restored). Used by the rank's thread.
class state {
 public:
  /// Describes the owners, at least one. Throws configuration_error when two parts have one name.
  template <class... Owners>
  requires(sizeof...(Owners) > 0 && (state_owner<Owners> && ...) &&
           !(std::same_as<std::remove_cvref_t<Owners>, state> || ...)) explicit state(Owners&&... owners) {
    (owners_.push_back(describer(std::forward<Owners>(owners))), ...);
    (void)parts();
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  /// Returns the parts, in the order of the owners, by calling each owner's `describe`. Throws configuration_error for
  /// equal names, and within a step that may commit. Within an evaluation it returns the parts as of the evaluation's
  /// begin. Also throws configuration_error after a commit in which an owner failed to adopt its changes.
  [[nodiscard]] const std::vector<state_part>& parts();
  /// Returns the parts of the last call of the other overload.
  [[nodiscard]] const std::vector<state_part>& parts() const noexcept { return has_.parts_; }
  /// Returns the properties as of the last call of `parts`: the properties that its owners have added, its replicated
  /// parts, and its data.
  [[nodiscard]] std::vector<compared_property> properties() const;
  /// Returns a digest of the replicated parts, the steps and the cursor; it is equal at all ranks of a training. Reads
  /// all bytes. Throws configuration_error within a step that may commit, because the state is incomplete there.
  [[nodiscard]] std::uint64_t digest();

  /// Returns the number of committed steps.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  [[nodiscard]] state_position position() const;
  /// Returns the step and the fractional epoch, for schedules.
  [[nodiscard]] training_position progress() const;
  /// Moves to `position`, after its caller has filled the parts with the values of that position. Throws the loader's
  /// errors for a cursor that does not fit its data; the position is then unchanged.
  void move_to(const state_position& position);

  /// Returns true if the state has a cursor. The next two functions use that cursor.
  [[nodiscard]] bool has_data() const noexcept { return has_.cursor_.has_value(); }
  /// Returns true if no batch of the epoch is left.
  [[nodiscard]] bool epoch_is_over() const;
  /// Moves to the start of the next epoch.
  void next_epoch();

  /// The stages of a step, called by sessions. `begin_step` copies the parts that the step may change. In `before_step`
  /// the ranks agree on the inputs of the step. In `exchange` they exchange the step's changes. Then either
  /// `commit_step` moves the cursor past its batch, lets the owners adopt their changes and drops the copy, or
  /// `roll_back` restores everything. If the cursor cannot move, `commit_step` throws the loader's error, and the step
  /// can be rolled back. `roll_back` does nothing when `may_roll_back` is false: when no step has begun, and after an
  /// exception of an owner that adopted its changes. An evaluation is a step that does not commit.
  void begin_step(bool commits = true);
  void before_step(step& current);
  void exchange(group& ranks);
  void commit_step();
  void roll_back() noexcept;
  [[nodiscard]] bool may_roll_back() const noexcept { return stage_ == stage::step || stage_ == stage::evaluation; }
  /// Checks a failed step that is to be run again. Throws configuration_error when a part that is restored on failure
  /// was added during that step, because there was no copy to restore.
  void require_restored();
  /// Ends an evaluation: rolls it back and counts it. `finish_run` counts a run.
  void finish_evaluation() noexcept;
  void finish_run() noexcept { ++runs_; }

  /// The position at which the rank's present run began.
  struct run_start {
    std::uint64_t steps = 0;
    std::uint64_t epoch = 0;
  };
  /// Returns the start of this rank's run, which `session::run` sets and clears. A rank that copies this state has to
  /// end its run where this rank does. The position alone does not show that: after the last step of an epoch it equals
  /// the start of the next run.
  [[nodiscard]] const std::optional<run_start>& run() const noexcept { return run_; }
  void set_run(const std::optional<run_start>& began) noexcept { run_ = began; }
  /// Sets the run of the rank from which this state was copied. `followed_run` returns that run and clears it.
  void follow_run(const std::optional<run_start>& source_run) noexcept { followed_ = source_run; }
  [[nodiscard]] std::optional<run_start> followed_run() noexcept { return std::exchange(followed_, std::nullopt); }

 private:
  // Returns a function that adds the parts of an owner, which is referenced or stored.
  template <class T>
  static std::function<void(state_parts&)> describer(T&& owner_value) {
    const auto describe = [](auto& owner, state_parts& parts) {
      if constexpr (std::same_as<std::remove_cvref_t<T>, sampler_handle>)
        parts.add(owner);
      else
        owner.describe(parts);
    };
    if constexpr (std::is_lvalue_reference_v<T>)
      return [&owner_value, describe](state_parts& parts) { describe(owner_value, parts); };
    else
      return [stored = std::make_shared<T>(std::move(owner_value)), describe](state_parts& parts) {
        describe(*stored, parts);
      };
  }

  std::vector<std::function<void(state_parts&)>> owners_;
  state_parts has_;                             // as of the last call of `parts`
  std::vector<std::vector<std::byte>> shadow_;  // by part: the copy of a part that is restored on failure
  enum class stage : std::uint8_t { between_steps, step, evaluation, adoption };
  stage stage_ = stage::between_steps;
  std::uint64_t begun_ = 0;  // number of steps and evaluations that have begun
  std::uint64_t steps_ = 0;
  std::uint32_t evaluations_ = 0;
  std::uint32_t runs_ = 0;
  std::optional<run_start> run_;       // this rank's run, while it is in `session::run`
  std::optional<run_start> followed_;  // the run of the rank from which this state was copied
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
