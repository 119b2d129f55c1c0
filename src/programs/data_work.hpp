// The operations of muster-data that read all records of a source; main is in muster_data.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/data/bad_records.hpp>
#include <muster/data/records/writer.hpp>

#include "print.hpp"

struct copy_request {
  std::string from;     // Specification of a source.
  std::string to;       // A folder, or one file if it ends with ".muster" or ".parquet".
  bool append = false;  // Adds to the records in the folder.
  std::uint64_t file_bytes = std::uint64_t{256} << 20;  // Bytes of records after which a new file begins.
  std::uint64_t files = 0;           // Number of files, with about the same number of records each; 0: by file_bytes.
  std::vector<std::string> classes;  // Names of the classes that labels number; empty: as in the source.
  std::string by;                    // If not empty: writes shards by this muster::shard_rule.
  std::uint32_t shards = 0;          // Number of shards.
  muster::data::record_file_options layout;
  muster::bad_record_options bad;
  int threads = 0;  // Threads to read with; 0: all.
};

/// Returns "records:PATH" for an existing path without a scheme; otherwise the source unchanged.
std::string as_specification(const std::string& specification);

/// Writes the records of a source in muster's own format or as Parquet, and returns a report of the copy.
json copy_records(const copy_request& request);

/// Returns the statistics of a source, and stores them in the folder if the source is a folder of records.
json describe_statistics(const std::string& specification, int threads);

/// Reads every record of a source, and returns a report with the number of bad records and the details of the first
/// `most_shown` bad records.
json verify_source(const std::string& specification, std::uint64_t most_shown, int threads);
