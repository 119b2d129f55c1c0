// What the records of ranks that waited in vain say together.
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
  std::uint64_t done = 0;                     ///< the first call that is not
  std::map<std::uint64_t, std::string> ring;  ///< the last ones, by their number
};

struct flight_record {
  std::filesystem::path file;
  long process = 0;
  int status = 0;                                  ///< of the failure for which it was written; 0: it was asked for
  std::map<std::uint64_t, recorded_group> groups;  ///< by id
};

/// Reads a record; nothing when it is none.
[[nodiscard]] std::optional<flight_record> parse_flight_record(std::string_view text);
/// Those of a folder.
[[nodiscard]] std::vector<flight_record> read_flight_records(const std::filesystem::path& folder);

/// Lines for people: for each group in which a rank waits, which ranks wait in which call, which are missing, and the
/// first call in which ranks part.
[[nodiscard]] std::vector<std::string> explain_hang(const std::vector<flight_record>& records);

/// The stacks of a process' threads, as eu-stack (of elfutils) prints them, or why there are none.
[[nodiscard]] std::string stacks_of(long process);
