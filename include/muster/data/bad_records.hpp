// Records that cannot be used: how they are found and counted, and how many are too many.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/cursor.hpp>  // sample_id

namespace muster { inline namespace v0 {

/// A record that cannot be used, as the source tells it: damaged on disk, or a line that says no sample. It keeps its
/// id and its place in the order of the epoch, so that leaving it out pulls no other record forward.
struct bad_record {
  sample_id id = 0;
  data_location where;  ///< its file with its line, or its first byte
  std::string problem;  ///< what is wrong with it, without the place: problem (why) suggestion
};

/// What to do about bad records.
enum class bad_record_policy {
  fail,       ///< the first one ends the run
  skip,       ///< leave them out, up to a limit
  quarantine  ///< leave them out, up to a limit, and write each into a file
};

/// The policy for bad records, and its limits.
struct bad_record_options {
  bad_record_policy policy = bad_record_policy::fail;
  /// So many different records may be left out; one more ends the run.
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
  /// quarantine: the file to append to, one JSON object a line {"source", "id", "file", "line" or "offset", "problem"}.
  /// Several processes may share it.
  std::string file = {};
};

/// Counts the bad records of a run and enforces the options. A record that is met again, in the next epoch or by
/// another thread, counts once. Copies share one count; any thread may call any function.
class bad_record_log {
 public:
  /// Throws configuration_error for a quarantine without a file, or one that cannot be written.
  explicit bad_record_log(bad_record_options options = {});

  /// Takes note of bad records of the source of this name. Throws data_error for the first one that is not allowed,
  /// with its file and place, and configuration_error when the quarantine cannot be written.
  void note(std::string_view source, std::span<const bad_record> found);

  /// Different records noted so far.
  [[nodiscard]] std::uint64_t count() const;
  /// The same by file.
  [[nodiscard]] std::map<std::string, std::uint64_t> count_by_file() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}}  // namespace muster::v0
