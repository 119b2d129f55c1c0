// The end of a process's part in an elastic job.
#pragma once

#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace elastic {

/// The reason why a process's part in the job is over. Its number is the exit status of such a process.
enum class exit_reason : int {
  left = 143,          ///< a request to leave, such as SIGTERM
  fenced = 10,         ///< the other members continued without it, or the job was restarted without it
  too_few = 11,        ///< fewer than `--min-ranks` were left for the whole quorum timeout
  no_majority = 12,    ///< for the whole quorum timeout no majority agreed on the suspects, or the store did not answer
  never_started = 13,  ///< the first generation was not formed, or no member admitted the joiner
  state_lost = 14,     ///< all members that had the state died before another member had copied it
  too_slow = 15        ///< the process delayed the others, and slow members are to leave
};

/// Reports that this process's part in the job is over; the job itself may continue.
class departure : public error {
 public:
  /// Takes the text, one line: problem (why) suggestion. `is_first`: true at the one remaining member that saves the
  /// state.
  departure(exit_reason reason, const std::string& text, bool is_first = false)
      : error(error_kind::peer_failure, text), why_(reason), is_first_(is_first) {}

  /// Returns the reason; its number is the exit status.
  [[nodiscard]] exit_reason why() const noexcept { return why_; }
  /// Returns true if the whole job ends here, because too few members are left or because all have left, and this
  /// process is the member that saves the state. The state is then the state after the last step that this process
  /// committed, and the context's world is this process alone.
  ///
  ///     catch (const muster::elastic::departure& gone) {
  ///       auto alone = muster::fixed_session(context);
  ///       if (gone.should_save()) store.save(alone, state);
  ///       throw;
  ///     }
  [[nodiscard]] bool should_save() const noexcept {
    return is_first_ && (why_ == exit_reason::too_few || why_ == exit_reason::left);
  }
  [[nodiscard]] int exit_status() const noexcept override { return static_cast<int>(why_); }

 private:
  exit_reason why_;
  bool is_first_;
};

}}}  // namespace muster::v0::elastic

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
