// A training as a sequence of steps, each of which commits or did not happen.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include <muster/comm/context.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>

namespace muster { inline namespace v0 {

/// The end of a `session::run`. Numbers count from the start of the training, so that a rank that joins later ends with
/// the others; 0: no limit. A run also ends with the epoch.
struct run_limits {
  std::uint64_t epochs = 0;  ///< ends with this epoch
  std::uint64_t steps = 0;   ///< ends with this step
  std::uint64_t every = 0;   ///< ends when the number of steps is a multiple of it: to save, to evaluate
};

class session;

namespace detail {

/// Decides which ranks train together (as it is: a group that stays), and what happens when one of them fails: the
/// interface between a session, which owns one of these, and the membership. Called by the thread that is the rank.
///
///     for (;;) {                                     // session::run
///       session_backend.prepare(state);                    // group() and generation() are those of the next attempt
///       if (the limits are reached) break;           // asked after each prepare, which may have moved the state on
///       state.begin_step();
///       try { state.meet(step); f(step); state.exchange(group); } catch (...) {
///         state.roll_back();                         // the step did not happen
///         session_backend.recover(state, std::current_exception());
///         continue;
///       }
///       state.commit_step();                         // local and without a way to fail: it happened
///       session_backend.committed(state);
///     }
class session_backend {
 public:
  session_backend() = default;
  session_backend(const session_backend&) = delete;
  session_backend& operator=(const session_backend&) = delete;
  virtual ~session_backend() = default;

  /// Before each attempt at a step or an evaluation, and once more before a run ends: makes sure that there is a group
  /// and that all its members have one state. When ranks join, leave or fail this forms the next generation, and copies
  /// the state of the furthest member (`state_position::is_beyond`) to those that are behind: replicated parts are
  /// overwritten, rank-local ones stay, then `state::move_to`. Members may call it from different places (one from the
  /// failed step, another from the next step or an evaluation): only positions are compared, and each member continues
  /// at its new position.
  virtual void prepare(state& /*of*/) {}
  /// The current group: valid from `prepare` to the next `prepare` or `recover`.
  [[nodiscard]] virtual group& ranks() = 0;
  [[nodiscard]] virtual std::uint64_t generation() const noexcept { return 0; }
  /// Runs the function of one attempt, and lets its exceptions pass.
  virtual void attempt(const std::function<void()>& f) { f(); }
  /// After an attempt that threw; the state is restored. Returns if the attempt may be repeated without the failed
  /// ranks; else throws `why`, which ends the run.
  virtual void recover(state& /*of*/, std::exception_ptr why) { std::rethrow_exception(why); }
  /// A step was committed.
  virtual void committed(const state& /*of*/) noexcept {}
};

/// A fixed session whose ranks do not wait for one another, and compare nothing.
[[nodiscard]] muster::session separate_session(group& ranks);

}  // namespace detail

/// Runs steps. Made by `fixed_session(context)`, which keeps its ranks, or by `elastic::session(context)`, in which
/// ranks leave, fail and join. Used by the thread that is the rank.
class session {
 public:
  /// Owns the backend that makes and rebuilds the group; programs call fixed_session or elastic::session.
  explicit session(std::unique_ptr<detail::session_backend> by) noexcept : by_(std::move(by)) {}

  /// Calls `f(step)` for one batch after another, to the end of the epoch or a limit; a step commits when `f` returns
  /// and the ranks have exchanged what they average in a step (`sync_mode`).
  /// A cursor at the end of an epoch moves to the next epoch first. False when a limit was reached before:
  ///
  ///     while (session.run(state, train, {.epochs = 90})) {
  ///       session.evaluate(state, measure);
  ///       store.save(session, state);  // `checkpoint`
  ///     }
  ///
  /// `f` may throw at any point; the state is then as before the step. In an elastic session the step is repeated after
  /// a failure of other ranks, with those that are left, so `f` may change other things than the state only in ways
  /// that may happen twice. Other exceptions end the run. All ranks pass the same limits; without a cursor in the state
  /// there must be a limit on steps. Throws configuration_error when the run could not end or the data has no batch.
  ///
  /// A process that joins starts its program from the beginning: the runs and evaluations that the others have finished
  /// return at once, with true and false, until it reaches the call that the others are in. So the sequence of calls,
  /// and what one passes to the next, must be a function of the results of `run` and of the state.
  template <std::invocable<step&> F>
  bool run(state& of, F&& f, const run_limits& limits = {}) {
    return run_steps(
        of, [&f](step& now) { f(now); }, limits);
  }

  /// Calls `f(step)` once as a step that changes nothing: an evaluation, with a shard and a group as in `run`, repeated
  /// after a failure that an elastic session survives. Changes of state that is restored on failure are undone. False
  /// when the others had finished it before this rank failed in it or joined: then this rank skips it. Use it for
  /// everything collective between steps. Changes of parts that are not restored on failure (the epochs of a tracker)
  /// stay, so `f` makes them last, after everything that may fail.
  template <std::invocable<step&> F>
  bool evaluate(state& of, F&& f) {
    return evaluate_once(of, [&f](step& now) { f(now); });
  }

  /// The current group, between two steps.
  [[nodiscard]] muster::group& group() { return by_->ranks(); }
  /// The generation of that group; see step.
  [[nodiscard]] std::uint64_t generation() const noexcept { return by_->generation(); }

 private:
  bool run_steps(state& of, const std::function<void(step&)>& f, const run_limits& limits);
  bool evaluate_once(state& of, const std::function<void(step&)>& f);
  bool attempt(state& of, const std::function<void(step&)>& f, bool commits);
  void prepare(state& of);

  /// Calls that the others have finished and this rank skips.
  struct backlog {
    std::uint32_t runs = 0;
    std::uint32_t evaluations = 0;
  };

  std::unique_ptr<detail::session_backend> by_;
  backlog behind_;
};

/// A session without changes of membership: a failure of any rank ends the run, with the state as it was before the
/// step. The first run or evaluation of a state begins, at all ranks, with the position and the replicated parts of
/// rank 0; one warning names the first part that was another. Throws mismatch_error at all ranks, with the first
/// property that differs, for states of other parts, properties or data (`state::properties`). The context (or group)
/// outlives it.
[[nodiscard]] session fixed_session(group& ranks);
/// The same for the world of a context; call it inside `context.run` where ranks are threads.
[[nodiscard]] session fixed_session(context& of);

}}  // namespace muster::v0
