// What muster-data does with sources and files of records; main is in muster_data.cpp.
#pragma once

#include <cstdint>
#include <string>

#include <muster/data/bad_records.hpp>
#include <muster/data/records/writer.hpp>

#include "print.hpp"

struct copy_request {
  std::string from;  // a specification of a source
  std::string to;    // a folder, or one file if it ends with ".muster"
  bool append = false;
  std::uint64_t file_bytes = std::uint64_t{256} << 20;
  std::uint64_t files = 0;   // so many, of about the same number of records; 0: by file_bytes
  std::string by;            // if not empty: in shards, as muster::shard_rule has it
  std::uint32_t shards = 0;  // so many
  muster::record_file_options layout;
  muster::bad_record_options bad;
  int threads = 0;
};

/// "records:PATH" for a path without a scheme.
std::string as_specification(const std::string& source);

/// Writes the records of a source into muster's own format.
json copy_records(const copy_request& request);

/// What a source is, without reading its records.
json describe_source(const std::string& specification, int threads);

/// The statistics of a source; a folder of records keeps them.
json describe_statistics(const std::string& specification, int threads);

/// Reads every record of a source, and says which are bad, the first ones one by one.
json verify_source(const std::string& specification, std::uint64_t most_shown, int threads);
