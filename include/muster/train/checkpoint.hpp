// A state on disk, from which a training goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/elastic/state.hpp>

namespace muster::inline v0 {

/// Which checkpoints stay.
struct checkpoint_options {
  std::size_t keep = 3;            ///< the last so many, at least 1
  bool smaller_is_better = false;  ///< of the metric; the best one stays too
};

/// Writes the whole of a state into a folder and reads it again (docs/checkpoints.md describes the files).
///
///     muster::checkpoint store("checkpoints", {.keep = 3});
///     store.load(session.group(), state);                       // goes on, if there is something to go on from
///     while (session.run(state, train, {.epochs = 90})) {
///       ...
///       store.save(session.group(), state, accuracy);
///     }
///
/// Rank 0 writes what is replicated, each rank what is its own. A checkpoint is there whole or not at all: its last
/// file is renamed into place when all others are on the disk, and each has checksums. Killed at any moment, a writer
/// leaves the checkpoints that were there before. Where ranks are on several hosts, the folder is one they share.
///
/// Calls are collective, between steps. Used by the thread that is the rank.
class checkpoint {
 public:
  /// Makes the folder if there is none. Throws configuration_error when it cannot be written to, or keep is 0.
  explicit checkpoint(std::string folder, const checkpoint_options& options = {});

  /// Saves, and then removes what is neither one of the last nor the best. `metric` says how good the state is; NaN,
  /// that nobody knows. The same at every rank. Throws configuration_error, at all ranks, when one of them cannot
  /// write; the checkpoints before stay then.
  void save(group& ranks, state& of, double metric = std::numeric_limits<double>::quiet_NaN());

  /// Goes to the newest checkpoint that is whole and of such a state; false, and nothing changed, when the folder has
  /// none at all. One that is torn, damaged or of something else is logged with what is wrong with it and left out;
  /// when no other is left, throws data_error with that. In a world of as many ranks as saved it all is bit for bit as
  /// it was; in another, rank-local parts stay as they are, and the cursor sees to it that the data goes on at its
  /// place.
  bool load(group& ranks, state& of);

  /// Steps of the checkpoints in the folder, ascending, whole or not. Not collective.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  struct found;
  [[nodiscard]] std::vector<found> list() const;
  [[nodiscard]] std::string name_of(std::uint64_t steps, std::uint64_t id) const;
  [[nodiscard]] std::string part_of(std::uint64_t steps, std::uint64_t id, int rank) const;
  [[nodiscard]] bool load_one(group& ranks, state& of, std::uint64_t steps, std::uint64_t id, std::string& why);
  void remove_old(std::uint64_t newest) const;

  std::string folder_;
  checkpoint_options options_;
};

}  // namespace muster::inline v0
