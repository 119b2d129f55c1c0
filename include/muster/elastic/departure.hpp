// How a process' part in an elastic job ends.
#pragma once

#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace elastic {

/// Why a process' part in the job is over; each is the exit status of a process that ends so.
enum class exit_reason : int {
  left = 143,          ///< it was asked to, as by SIGTERM
  fenced = 10,         ///< the others went on without it
  too_few = 11,        ///< fewer than `--min-ranks` were left for as long as the patience
  no_majority = 12,    ///< suspects, and no majority that agrees, for as long as the patience
  never_started = 13,  ///< the first generation did not come together, or no member took a joiner in
  state_lost = 14,     ///< all members that had the state died before another had copied it
  too_slow = 15        ///< it held up the others, and slow members are to leave
};

/// This process' part in the job is over, though the job may go on.
class departure : public error {
 public:
  /// `text` is one line: problem (why) suggestion; `is_first`: of the members that are left, this one saves.
  departure(exit_reason why, const std::string& text, bool is_first = false)
      : error(error_kind::peer_failure, text), why_(why), is_first_(is_first) {}

  /// The reason; its number is the exit status.
  [[nodiscard]] exit_reason why() const noexcept { return why_; }
  /// Whether the whole job ends here, for want of members or because all have left, and this is the one of the members
  /// that saves the state: it is that of the last step that this process committed, and the context's world is this
  /// process alone.
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
