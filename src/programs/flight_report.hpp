// The analysis of flight records that ranks of a hung job wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// One rank's calls in one group.
struct recorded_group {
  int rank = 0;
  int size = 1;
  std::uint64_t done = 0;                     ///< Number of the first call that is not done.
  std::map<std::uint64_t, std::string> ring;  ///< Latest calls, by their number.
};

struct flight_record {
  std::filesystem::path file;
  long process = 0;
  /// Exit status of the failure for which the record was written; 0 if it was requested.
  int status = 0;
  std::map<std::uint64_t, recorded_group> groups;  ///< Groups by id.
};

/// Parses a record; returns nothing if the text is no record.
[[nodiscard]] std::optional<flight_record> parse_flight_record(std::string_view text);
/// Returns the records that can be parsed of the files in a folder; none if the folder cannot be read.
[[nodiscard]] std::vector<flight_record> read_flight_records(const std::filesystem::path& folder);

/// Returns readable lines: for each group in which a rank waits, the waiting ranks with their calls, the missing ranks,
/// and the first call that differs between ranks.
[[nodiscard]] std::vector<std::string> explain_hang(const std::vector<flight_record>& records);

/// Returns the stacks of a process' threads, as printed by eu-stack (of elfutils), or the reason why there are none.
[[nodiscard]] std::string stacks_of(long process);
