// A state on disk, from which a training resumes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/elastic/session.hpp>

namespace muster { inline namespace v0 {

/// Which checkpoints are kept.
struct checkpoint_options {
  std::size_t keep = 3;            ///< how many of the last ones, at least 1
  bool smaller_is_better = false;  ///< direction of the metric; the best checkpoint is kept too
};

/// Whether a state is saved, and how.
enum class save_kind {
  none,
  in_background,  ///< from a copy; `checkpoint::save` returns when that is made
  and_wait        ///< `checkpoint::save` returns when the checkpoint is complete
};

namespace detail {
class checkpoint_writer;
}

/// Writes the whole of a state into a folder and reads it again (docs/checkpoints.md describes the files).
///
///     muster::checkpoint store("checkpoints", {.keep = 3});
///     store.load(session, state);                               // resumes, if there is a checkpoint
///     while (session.run(state, train, {.epochs = 90})) {
///       session.evaluate(state, [&](muster::step& now) {
///         ...
///         tracker.end_epoch(now.group(), {.val_accuracy = ...});
///       });
///       store.save(session, state, tracker.epochs().back().metrics.val_accuracy);
///     }
///
/// Rank 0 writes the replicated parts, each rank its rank-local parts. A checkpoint is complete or does not exist: its
/// last file is renamed into place when all others are on the disk, and each has checksums, so a writer that is killed
/// at any moment leaves the earlier checkpoints valid. Ranks on several hosts need a shared folder. Each rank writes
/// from copies, and keeps their memory.
///
/// Both calls are evaluations of the session: collective, between steps, repeated by the survivors after a failure, and
/// skipped by a rank that joins later. Used by the thread that is the rank.
class checkpoint {
 public:
  /// Makes the folder if it is missing. Throws configuration_error when it is not writable, or keep is 0.
  explicit checkpoint(std::string folder, const checkpoint_options& options = {});
  checkpoint(checkpoint&&) noexcept;
  checkpoint& operator=(checkpoint&&) noexcept;
  /// Waits until this rank has written its part of what it saves.
  ~checkpoint();

  /// Saves, and then removes checkpoints that are neither among the last nor the best. `metric` measures the state;
  /// NaN: unknown. The value of rank 0 is used, so take it from the state, which ranks that joined have too. Throws
  /// configuration_error, at all ranks, when one of them cannot write, and when another training has saved into the
  /// folder since this one looked at it last; the earlier checkpoints stay.
  /// If `due` is given it is called first, in the same evaluation, and says how to save, the same at all ranks. What
  /// was saved in the background before is completed first; where that failed, rank 0 logs a warning.
  void save(session& by, state& of, double metric = std::numeric_limits<double>::quiet_NaN(),
            const std::function<save_kind(step& now)>& due = {});

  /// Before the first step: loads the newest checkpoint that is complete and fits the state. True when the state has
  /// committed steps afterwards; without any checkpoint nothing changes. A checkpoint that is incomplete, damaged or of
  /// another state is logged with the reason and skipped; if all are, throws data_error with the reason, and nothing
  /// changes. With the same number of ranks as at the save the state is the same bit for bit; with another number
  /// rank-local parts keep their values, and the data continues at the cursor, but where the parameters are rank-local
  /// (local SGD, gossip) the checkpoint is skipped as one of another state. Needs memory for a second copy of the
  /// replicated parts.
  bool load(session& by, state& of);

  /// As given to the constructor.
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  struct content;
  void begin(group& ranks, const state& of, double metric);
  [[nodiscard]] std::string finish(group& ranks);
  [[nodiscard]] std::optional<content> read(group& ranks, state& of) const;
  [[nodiscard]] std::string read_one(group& ranks, state& of, const std::string& name, content& to) const;

  std::string folder_;
  checkpoint_options options_;
  std::uint64_t newest_ = 0;  // the id of the newest checkpoint that this training has found there, or saved
  std::unique_ptr<detail::checkpoint_writer> writer_;
};

/// How long to train from one checkpoint to the next so that the least time is lost, to saves and to work done again
/// after failures: Daly 2006, https://doi.org/10.1016/j.future.2004.11.016, which for cheap saves is Young's
/// sqrt(2 cost between_failures) of 1974.
[[nodiscard]] seconds checkpoint_interval(seconds cost, seconds between_failures);

}}  // namespace muster::v0
