// A state on disk, from which a training goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/elastic/session.hpp>

namespace muster::inline v0 {

/// Which checkpoints stay.
struct checkpoint_options {
  std::size_t keep = 3;            ///< the last so many, at least 1
  bool smaller_is_better = false;  ///< of the metric; the best one stays too
};

/// Writes the whole of a state into a folder and reads it again (docs/checkpoints.md describes the files).
///
///     muster::checkpoint store("checkpoints", {.keep = 3});
///     store.load(session, state);                               // goes on, if there is something to go on from
///     while (session.run(state, train, {.epochs = 90})) {
///       session.evaluate(state, [&](muster::step& now) {
///         ...
///         tracker.end_epoch(now.group(), {.val_accuracy = ...});
///       });
///       store.save(session, state, tracker.epochs().back().metrics.val_accuracy);
///     }
///
/// Rank 0 writes what is replicated, each rank what is its own. A checkpoint is there whole or not at all: its last
/// file is renamed into place when all others are on the disk, and each has checksums. Killed at any moment, a writer
/// leaves the checkpoints that were there before. Where ranks are on several hosts, the folder is one they share.
///
/// Both calls are evaluations of the session: collective, between steps, and done again without ranks that failed
/// meanwhile, or left out by one that joined since. Used by the thread that is the rank.
class checkpoint {
 public:
  /// Makes the folder if there is none. Throws configuration_error when it cannot be written to, or keep is 0.
  explicit checkpoint(std::string folder, const checkpoint_options& options = {});

  /// Saves, and then removes what is neither one of the last nor the best. `metric` says how good the state is; NaN,
  /// that it is not known. Rank 0's counts, so it comes from the state, which a rank that joined has too. Throws
  /// configuration_error, at all ranks, when one of them cannot write; the checkpoints before stay then.
  /// Where `due` is given, it is asked first, in the same evaluation, and nothing is written where it says false, as it
  /// must at all ranks or at none.
  void save(session& by, state& of, double metric = std::numeric_limits<double>::quiet_NaN(),
            const std::function<bool(step& now)>& due = {});

  /// Before the first step: goes to the newest checkpoint that is whole and of such a state. True when the state has
  /// steps behind it then; nothing has changed when the folder has none at all. A checkpoint that is torn, damaged
  /// or of something else is logged with what is wrong with it and left out; when no other is left, throws data_error
  /// with that, and nothing has changed. In a world of as many ranks as saved it all is bit for bit as it was; in
  /// another, rank-local parts stay as they are, and the cursor sees to it that the data goes on at its place. Takes
  /// memory for the replicated parts once more.
  bool load(session& by, state& of);

  /// Steps of the checkpoints in the folder, ascending, whole or not. Not collective.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  struct found;
  struct content;
  [[nodiscard]] std::vector<found> list() const;
  [[nodiscard]] std::string name_of(std::uint64_t steps, std::uint64_t id) const;
  [[nodiscard]] std::string part_of(std::uint64_t steps, std::uint64_t id, int rank) const;
  void write(group& ranks, const state& of, double metric) const;
  [[nodiscard]] std::optional<content> read(group& ranks, state& of) const;
  [[nodiscard]] std::string read_one(group& ranks, state& of, std::uint64_t steps, std::uint64_t id, content& to) const;
  void remove_old(std::uint64_t newest) const;

  std::string folder_;
  checkpoint_options options_;
};

/// How long to train from one checkpoint to the next so that the least time is lost, to saves and to work done again
/// after failures: Daly 2006, https://doi.org/10.1016/j.future.2004.11.016, which for cheap saves is Young's
/// sqrt(2 cost between_failures) of 1974.
[[nodiscard]] seconds checkpoint_interval(seconds cost, seconds between_failures);

}  // namespace muster::inline v0
