// What the records of ranks that waited in vain say together.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// A collective as a rank saw it.
struct recorded_call {
  std::uint64_t bytes = 0;
  std::string state;  ///< done, waiting or queued
  double began = 0;   ///< seconds before the record was written; 0: it took no look at the clock
  double took = 0;
  std::string what;  ///< "allreduce of 1024 float32, sum, by ring"
};

/// One rank's calls in one group.
struct recorded_group {
  int rank = 0;
  int size = 1;
  std::uint64_t calls = 0;
  std::uint64_t done = 0;                       ///< the first call that is not
  std::map<std::uint64_t, recorded_call> ring;  ///< the last ones, by their number
};

struct flight_record {
  long process = 0;
  int status = 0;  ///< of the failure for which it was written; 0: it was asked for
  std::string why;
  std::map<std::uint64_t, recorded_group> groups;  ///< by id
};

/// Reads a record; nothing when it is none.
[[nodiscard]] std::optional<flight_record> parse_flight_record(std::string_view text);

/// Lines for people: for each group in which a rank waits, which ranks are missing, and the first call in which ranks
/// part.
[[nodiscard]] std::vector<std::string> explain_hang(const std::vector<flight_record>& records);

/// The stacks of a process' threads, as eu-stack (of elfutils) prints them, or why there are none.
[[nodiscard]] std::string stacks_of(long process);
