// Checkpoints: a state on disk, from which a training resumes.
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

/// Options that select the checkpoints to keep.
struct checkpoint_options {
  std::size_t keep = 3;            ///< number of newest checkpoints to keep, at least 1
  bool smaller_is_better = false;  ///< direction of the metric; the best checkpoint is kept too
};

/// The way in which a call saves the state.
enum class save_kind {
  none,
  in_background,  ///< writes a copy of the state; `checkpoint::save` returns when the copy is complete
  and_wait        ///< `checkpoint::save` returns when the checkpoint is complete
};

namespace detail {
class checkpoint_writer;
}

/// A store of checkpoints, which writes a whole state into a folder and reads it again (docs/checkpoints.md describes
/// the files).
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
/// Rank 0 writes the replicated parts, and each rank writes its rank-local parts. A checkpoint is complete or does not
/// exist: the last file is renamed into place when all other files are on the disk, and each file has checksums. A
/// writer that is killed at any moment therefore leaves the earlier checkpoints valid. Ranks on several hosts need a
/// shared folder. Each rank writes from copies of its parts and keeps the memory of the copies.
///
/// Both calls are evaluations of the session: collective, between steps, repeated by the survivors after a failure, and
/// skipped by a rank that joins later. Call them on the thread that is the rank.
class checkpoint {
 public:
  /// Creates the folder if it is missing. Throws configuration_error when the folder is not writable or `keep` is 0.
  explicit checkpoint(std::string folder, const checkpoint_options& options = {});
  checkpoint(checkpoint&&) noexcept;
  checkpoint& operator=(checkpoint&&) noexcept;
  /// Waits until this rank has written its part of the current save.
  ~checkpoint();

  /// Saves the state, and then removes the checkpoints that are neither among the newest nor the best. `metric`
  /// measures the state; NaN: unknown. All ranks use the value of rank 0: take the value from the state, which ranks
  /// that joined have too. Throws configuration_error at all ranks when any rank cannot write, or when another training
  /// has saved into the folder since this training last read the folder. The earlier checkpoints remain valid in that
  /// case.
  ///
  /// If `due` is given, `save` calls it first, in the same evaluation. `due` returns how to save, with the same result
  /// at all ranks. `save` completes an earlier save in the background first. Where that earlier save failed, rank 0
  /// logs a warning.
  void save(session& current_session, state& saved_state, double metric = std::numeric_limits<double>::quiet_NaN(),
            const std::function<save_kind(step& now)>& due = {});

  /// Loads, before the first step, the newest checkpoint that is complete and fits the state. Returns true when the
  /// state has committed steps afterwards. Without any checkpoint the state does not change. A checkpoint that is
  /// incomplete, damaged or from another state is logged with the reason and skipped. If all checkpoints are skipped,
  /// throws data_error with the reason and leaves the state unchanged.
  ///
  /// With the same number of ranks as at the save the state is bitwise the same. With another number of ranks
  /// rank-local parts keep their values, and the data continues at the cursor. Where the parameters are rank-local
  /// (local SGD, gossip) such a checkpoint does not fit and is skipped. Needs memory for a second copy of the
  /// replicated parts.
  bool load(session& current_session, state& saved_state);

  /// Returns the folder of the constructor's argument.
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  struct content;
  void begin(group& ranks, const state& saved_state, double metric);
  [[nodiscard]] std::string finish(group& ranks);
  [[nodiscard]] std::optional<content> read(group& ranks, state& saved_state) const;
  [[nodiscard]] std::string read_checkpoint(group& ranks, state& expected_state, const std::string& name,
                                            content& result) const;

  std::string folder_;
  checkpoint_options options_;
  std::uint64_t newest_ = 0;  // id of the newest checkpoint that this training has read or saved
  std::unique_ptr<detail::checkpoint_writer> writer_;
};

/// Writes the parameters of an arena in a checkpoint as a safetensors file, a tensor for each tensor of the arena.
/// `checkpoint` is a folder, whose newest complete checkpoint is taken, or a file of it that ends with ".state". Throws
/// data_error for a folder or a file without a valid checkpoint, for a checkpoint in which every rank has its own
/// parameters, and for names of tensors with blanks.
void export_parameters(const std::string& checkpoint, const std::string& path);

/// Returns the training time between two checkpoints that minimises the time lost to saves and to work that is repeated
/// after failures: Daly 2006, https://doi.org/10.1016/j.future.2004.11.016, which for cheap saves is Young's sqrt(2
/// cost between_failures) of 1974.
[[nodiscard]] seconds checkpoint_interval(seconds cost, seconds between_failures);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
