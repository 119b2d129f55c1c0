// A training as a row of steps that commit or did not happen, whichever processes the ranks are.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include <muster/comm/context.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>

namespace muster::inline v0 {

/// Where `session::run` ends. Numbers count from the start of the training, so that a rank that joins in the middle
/// ends where the others do; 0 is no limit. It also ends with every epoch.
struct run_limits {
  std::uint64_t epochs = 0;  ///< not beyond the end of so many epochs
  std::uint64_t steps = 0;   ///< not beyond so many steps
  std::uint64_t every = 0;   ///< whenever the number of steps is a multiple of it: to save, to measure
};

namespace detail {

/// What decides for a session which ranks train together, and what happens when one of them fails. This is the seam
/// between sessions and membership: one of these is behind each session, called by the thread that is the rank.
///
///     for (;;) {                                     // session::run
///       session_backend.prepare(state);                    // group() and generation() are those of the next attempt
///       if (the limits are reached) break;           // asked after each prepare, which may have moved the state on
///       state.begin_step();
///       try { f(step); state.exchange(group); } catch (...) {
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
  /// and that all its members have one state. Where ranks come or go this forms the next generation, and gives the
  /// state of the one that is furthest (`state_position::is_beyond`) to those that are behind: replicated parts are
  /// overwritten, rank-local ones stay, then `state::move_to`. Members can come here from different calls (one from the
  /// step that failed, another from the one behind it or from an evaluation): nothing but positions is compared, and
  /// each goes on where its new one says.
  virtual void prepare(state& of) = 0;
  /// The present group: valid from `prepare` to the next `prepare` or `recover`.
  [[nodiscard]] virtual group& ranks() = 0;
  [[nodiscard]] virtual std::uint64_t generation() const noexcept = 0;
  /// Runs the function of one attempt: what it throws goes through.
  virtual void attempt(const std::function<void()>& f) { f(); }
  /// An attempt threw; the state is as it was before. Returns when it may be tried again, or throws what ends the run:
  /// `why` itself unless it is about ranks that can be done without.
  virtual void recover(state& of, std::exception_ptr why) = 0;
  /// A step was committed.
  virtual void committed(const state& of) noexcept = 0;
};

}  // namespace detail

/// Runs steps. Made by `fixed_session(context)`, whose ranks are those it began with, or by
/// `elastic::session(context)`, whose ranks may die and join. Used by the thread that is the rank.
class session {
 public:
  /// Owns the backend that makes and rebuilds the group; programs call the functions above instead.
  explicit session(std::unique_ptr<detail::session_backend> by) noexcept : by_(std::move(by)) {}

  /// Calls `f(step)` for one batch after another, to the end of the epoch or a limit; a step commits when `f` returns
  /// and the ranks have exchanged what they average in a step (`sync_mode`).
  /// A cursor at the end of an epoch goes to the next one first. False when the limits leave nothing to do:
  ///
  ///     while (session.run(state, train, {.epochs = 90})) {
  ///       session.evaluate(state, measure);
  ///       store.save(session, state);  // `checkpoint`
  ///     }
  ///
  /// `f` may throw at any point; the state is then as before the step. In an elastic session a failure of other ranks
  /// makes it run the step again, with those that are left; what `f` changes beside the state it must be able to do
  /// twice. What other failures throw ends the run. All ranks run with the same limits; those on epochs and `every`
  /// need no data to be left out, but without a cursor in the state there must be a limit on steps. Throws
  /// configuration_error when it could not end or the data has no batch.
  ///
  /// A process that joins begins its program at the start: runs and evaluations that the others have behind them
  /// return at once, true and false, until it is in the call that they are in. So which calls follow one another, and
  /// what one leaves to the next, must be a function of what `run` returned and of the state.
  template <std::invocable<step&> F>
  bool run(state& of, F&& f, const run_limits& limits = {}) {
    return run_steps(
        of, [&f](step& now) { f(now); }, limits);
  }

  /// Calls `f(step)` once as a step that changes nothing: an evaluation, with a shard and a group as in `run`, again
  /// after a failure that an elastic session survives. What it does to state that is restored on failure is undone.
  /// False when the others had finished it and gone on when this rank failed in it, or joined: then there is nothing to
  /// do any more. Whatever is collective between steps is one of these. What `f` leaves in parts that are not restored
  /// on failure (the epochs of a tracker) stays, and so is the last that it does, after what may fail.
  template <std::invocable<step&> F>
  bool evaluate(state& of, F&& f) {
    return evaluate_once(of, [&f](step& now) { f(now); });
  }

  /// The ranks as they are between two steps.
  [[nodiscard]] muster::group& group() { return by_->ranks(); }
  /// Of that group; see step.
  [[nodiscard]] std::uint64_t generation() const noexcept { return by_->generation(); }

 private:
  bool run_steps(state& of, const std::function<void(step&)>& f, const run_limits& limits);
  bool evaluate_once(state& of, const std::function<void(step&)>& f);
  bool attempt(state& of, const std::function<void(step&)>& f, bool commits);
  void prepare(state& of);

  /// Calls that the others have behind them and this rank has not: it leaves them out.
  struct backlog {
    std::uint32_t runs = 0;
    std::uint32_t evaluations = 0;
  };

  std::unique_ptr<detail::session_backend> by_;
  backlog behind_;
};

/// A session of the ranks that there are: a failure of any of them ends its run, with the state as it was before the
/// step. The context (or group) must outlive it.
[[nodiscard]] session fixed_session(group& ranks);
/// The same of a context's world; inside `context.run` where ranks are threads.
[[nodiscard]] session fixed_session(context& of);

}  // namespace muster::inline v0
