// Records that cannot be used: their detection and counting, and the limit on their number.
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

namespace muster { inline namespace v0 { namespace data {

/// A record that cannot be used, as reported by the source: damaged on disk, or an invalid line of text. It keeps its
/// id and its place in the order of the epoch, so leaving it out does not shift other records.
struct bad_record {
  sample_id id = 0;
  data_location location;  ///< its file, with the line or the first byte
  std::string problem;     ///< the error without its place: "problem (reason); suggestion"
};

/// The policy for bad records.
enum class bad_record_policy {
  fail,       ///< the first one ends the run
  skip,       ///< leave them out, up to a limit
  quarantine  ///< leave them out, up to a limit, and write each into a file
};

/// The policy for bad records with its limits.
struct bad_record_options {
  bad_record_policy policy = bad_record_policy::fail;
  /// Number of different records that may be left out. The next bad record ends the run.
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
  /// For quarantine: the file to which bad records are appended, one JSON object a line {"source", "id", "file", "line"
  /// and "column" or "offset", "problem"}. Several processes may share the file.
  std::string file = {};
};

/// Counts the bad records of a run and enforces the options. A record that is found again, in the next epoch or by
/// another thread, counts once. Copies share one count. Any thread may call any function.
class bad_record_log {
 public:
  /// Throws configuration_error for a quarantine without a file, or with a file that cannot be written.
  explicit bad_record_log(bad_record_options options = {});

  /// Records bad records of the source with this name. Throws data_error, with file and place, for the first record
  /// that the policy does not allow. Throws configuration_error if the quarantine file cannot be written.
  void note(std::string_view source_name, std::span<const bad_record> found);

  /// Returns the number of different records noted so far.
  [[nodiscard]] std::uint64_t count() const;
  /// Returns the number of different records noted so far, by file.
  [[nodiscard]] std::map<std::string, std::uint64_t> count_by_file() const;

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::bad_record;
using data::bad_record_log;
using data::bad_record_options;
using data::bad_record_policy;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
