// A training as a sequence of steps. Each step either commits or has no effect.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include <muster/comm/context.hpp>
#include <muster/core/events.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>

namespace muster { inline namespace v0 {

/// The end of a `session::run`. Numbers count from the start of the training, so that a rank that joins later ends at
/// the same point as the others; 0: no limit. A run also ends with the epoch.
struct run_limits {
  std::uint64_t epochs = 0;  ///< ends after so many epochs
  std::uint64_t steps = 0;   ///< ends after so many committed steps
  std::uint64_t every_steps =
      0;  ///< ends when the number of steps is a multiple of `every_steps`: to save, to evaluate
};

class session;
class step_run;

namespace detail {

/// Decides which ranks train together and how a failure of a rank is handled: the interface between a session, which
/// owns a backend, and the membership. This base class keeps one fixed group. Called by the rank's thread.
///
///     for (;;) {                                     // session::run
///       session_backend.prepare(state);                    // group() and generation() are valid for the next attempt
///       if (the limits are reached) break;           // asked after each prepare, which may have moved the state on
///       state.begin_step();
///       try {
///         state.before_step(step); f(step); state.exchange(group);
///         state.commit_step();                       // local: sends and receives nothing
///       } catch (...) {
///         if (!state.may_roll_back()) throw;         // an owner threw while it adopted its changes: the state is lost
///         state.roll_back();                         // the step did not happen
///         session_backend.recover(state, std::current_exception());
///         continue;
///       }
///       session_backend.committed(state);
///     }
class session_backend {
 public:
  session_backend() = default;
  session_backend(const session_backend&) = delete;
  session_backend& operator=(const session_backend&) = delete;
  virtual ~session_backend() = default;

  /// Prepares each attempt at a step or an evaluation, and is called once more before a run ends: ensures that there is
  /// a group and that all its members have one state. When ranks join, leave or fail it forms the next generation, and
  /// copies the state of the furthest member (`state_position::is_beyond`) to the other members: it overwrites
  /// replicated parts, keeps rank-local parts, and then calls `state::move_to`. Members may call it from different
  /// places (one member from the failed step, another from the next step or an evaluation): only positions are
  /// compared, and each member continues at its new position.
  virtual void prepare(state& /*of*/) {}
  /// Returns the current group, which is valid from `prepare` to the next `prepare` or `recover`.
  [[nodiscard]] virtual group& ranks() = 0;
  /// Returns the number of the current group; 0 if the group never changes.
  [[nodiscard]] virtual std::uint64_t generation() const noexcept { return 0; }
  /// Begins an attempt, after the state has begun the step. Its end follows: successful, or before the state is
  /// restored.
  virtual void begin_attempt() {}
  virtual void end_attempt(bool /*is_successful*/) noexcept {}
  /// Handles an attempt that threw; the state is already restored. Returns if the attempt may be repeated without the
  /// failed ranks. Otherwise throws `failure`, which ends the run.
  virtual void recover(state& /*of*/, std::exception_ptr failure) { std::rethrow_exception(failure); }
  /// Reports that a step (not an evaluation) was committed.
  virtual void committed(const state& /*of*/) noexcept {}
};

/// Returns a fixed session whose ranks neither wait for one another nor compare their states.
[[nodiscard]] muster::session separate_session(group& ranks);

}  // namespace detail

/// Runs steps. Create a session by `fixed_session(context)`, which keeps its ranks, or by `elastic::session(context)`,
/// in which ranks leave, fail and join. Used by the rank's thread.
class session {
 public:
  /// Takes the backend that builds and rebuilds the group; programs call fixed_session or elastic::session.
  explicit session(std::unique_ptr<detail::session_backend> backend) noexcept : backend_(std::move(backend)) {}

  /// Calls `f(step)` for successive batches, to the end of the epoch or a limit. A step commits when `f` returns and
  /// the ranks have exchanged the averages of the step (`sync_mode`). A cursor at the end of an epoch first moves to
  /// the next epoch. Returns false when a limit had already been reached:
  ///
  ///     while (session.run(state, train, {.epochs = 90})) {
  ///       session.evaluate(state, measure);
  ///       store.save(session, state);  // `checkpoint`
  ///     }
  ///
  /// `f` may throw at any point; the state is then as before the step. In an elastic session the step is repeated after
  /// a failure of other ranks, with the remaining ranks. `f` may therefore change objects outside the state only in
  /// ways that may happen twice. Other exceptions end the run. All ranks pass the same limits. A state without a cursor
  /// requires a limit on steps. Throws configuration_error when the run could not end or the data has no batch.
  ///
  /// A process that joins starts its program from the beginning. Runs and evaluations that the other ranks have
  /// finished return at once, with true and false, until the process reaches the call that the others are in. The
  /// sequence of calls, and any data passed from one call to the next, must therefore be a function of the results of
  /// `run` and of the state.
  template <std::invocable<step&> F>
  bool run(state& target, F&& f, const run_limits& limits = {}) {
    return run_steps(
        target, [&f](step& current) { f(current); }, limits);
  }

  /// Calls `f(step)` once as a step that changes nothing: an evaluation, with a shard and a group as in `run`. It is
  /// repeated after a failure that an elastic session survives. Changes of parts that are restored on failure are
  /// undone. Returns false when the others had finished the evaluation before this rank failed in it or joined: this
  /// rank then skips it. Use it for every collective operation between steps. Changes of parts that are not restored on
  /// failure (the epochs of a tracker) stay, so `f` makes them last, after everything that may fail.
  template <std::invocable<step&> F>
  bool evaluate(state& target, F&& f) {
    return evaluate_once(target, [&f](step& current) { f(current); });
  }

  /// Returns the current group, between two steps.
  [[nodiscard]] muster::group& group() { return backend_->ranks(); }
  /// Returns the generation of that group; see step.
  [[nodiscard]] std::uint64_t generation() const noexcept { return backend_->generation(); }

 private:
  friend class step_run;
  bool run_steps(state& target, const std::function<void(step&)>& f, const run_limits& limits);
  bool evaluate_once(state& target, const std::function<void(step&)>& f);
  void commit(state& target, bool commits);
  void recover(state& target);
  void prepare(state& target);

  /// Number of calls that the others have finished and that this rank still has to skip.
  struct backlog {
    std::uint32_t runs = 0;
    std::uint32_t evaluations = 0;
  };

  std::unique_ptr<detail::session_backend> backend_;
  backlog backlog_;
};

/// A run of a session whose steps are not functions: the caller begins and ends each. `session::run` is the same as
///
///     step_run run(session, state, limits);
///     while (step* current = run.next()) {
///       try {
///         f(*current);
///         run.commit();
///       } catch (...) {
///         run.recover();  // rethrows unless the step is repeated
///       }
///     }
///     return run.has_run();
///
/// Used by the rank's thread. A step that is under way at its end is rolled back.
class step_run {
 public:
  /// Refers to the session and the state. Throws configuration_error when the run could not end.
  step_run(session& runner, state& target, const run_limits& limits = {});
  step_run(const step_run&) = delete;
  step_run& operator=(const step_run&) = delete;
  ~step_run();

  /// Begins the next step; null at the end of the run. The step is valid until `commit` or `recover`.
  [[nodiscard]] step* next();
  /// Commits the step. After an exception the caller calls `recover` in its handler.
  void commit();
  /// Restores the state after an exception, which must be the current one. Returns if the step is repeated; otherwise
  /// throws that exception.
  void recover();
  /// Returns true unless a limit had already been reached.
  [[nodiscard]] bool has_run() const noexcept { return has_run_; }

 private:
  void begin();
  [[nodiscard]] bool is_done() const;

  session* session_;
  state* state_;
  run_limits limits_;
  bool has_begun_ = false;
  bool has_ended_ = false;
  bool has_run_ = false;
  state::run_start start_{};
  std::optional<step> step_;
  std::optional<scoped_event> measured_;  // reports to the sink from before the attempt, whose own sink ends with it
};

/// Returns a session without changes of membership: a failure of any rank ends the run, with the state as it was before
/// the step. At the first run or evaluation of a state all ranks adopt the position and the replicated parts of rank 0,
/// and one warning names the first part that differed. Throws mismatch_error at all ranks, with the first property that
/// differs, for states of other parts, properties or data (`state::properties`). The context (or group) must outlive
/// it.
[[nodiscard]] session fixed_session(group& ranks);
/// Returns the same for the world of a context; call it inside `context.run` where ranks are threads.
[[nodiscard]] session fixed_session(context& parent);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
