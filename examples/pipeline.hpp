// Loader stages from the command line: records to keep, treatment of bad records, number of batches to prefetch.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <muster/core/env.hpp>
#include <muster/data/loader.hpp>

#include "command_line.hpp"

namespace examples {

struct stages {
  std::optional<muster::cache> kept;
  muster::bad_record_options bad;
  std::uint64_t prefetch = 4;  ///< In batches.
  int threads = 1;

  /// Adds the stages before the random stages: the treatment of bad records, and the cache.
  [[nodiscard]] muster::loader keep(muster::loader from) const {
    if (bad.policy != muster::bad_record_policy::fail) from = std::move(from) | muster::on_bad_records(bad);
    if (kept) from = std::move(from) | *kept;
    return from;
  }
  /// Returns the last stage.
  [[nodiscard]] muster::prefetch ahead() const {
    return muster::prefetch({.batches = static_cast<std::size_t>(prefetch), .threads = threads});
  }
};

/// Adds --on-bad-record alone, for data in memory.
inline void add_bad_record_flag(CLI::App& app, muster::bad_record_options& to) {
  app.add_option_function<std::string>(
         "--on-bad-record",
         [&to](const std::string& text) {
           using enum muster::bad_record_policy;
           const std::string file = text.starts_with("quarantine:") ? text.substr(11) : "";
           if (file.empty() && text != "stop" && text != "skip")
             refuse("there is no --on-bad-record '" + text + "'", "use stop, skip or quarantine:FILE");
           to = {.policy = text == "stop" ? fail : text == "skip" ? skip : quarantine, .file = file};
         },
         "a record that cannot be read ends the run, is left out, or is left out and described in a file [stop]")
      ->type_name("stop|skip|quarantine:FILE");
}

inline void add_stage_flags(CLI::App& app, stages& to) {
  add_bad_record_flag(app, to.bad);
  app.add_option_function<std::string>(
         "--cache",
         [&to](const std::string& text) {
           if (text == "memory")
             to.kept.emplace(muster::in_memory);
           else if (text == "off")
             to.kept.reset();
           else if (text.starts_with("disk:") && text.size() > 5)
             to.kept.emplace(text.substr(5));
           else
             refuse("there is no --cache '" + text + "'", "use memory, disk:FOLDER or off");
         },
         "keep records as they were read, in memory or in a folder for later runs too (docs/data.md)")
      ->type_name("memory|disk:FOLDER|off");
  muster::add_number(app, "--prefetch", to.prefetch, {0, 10'000}, "number of batches to prefetch");
  muster::add_number(app, "--threads", to.threads, {0, 256},
                     "threads of a rank that compute, and as many more that make batches ahead; the same bits for any; "
                     "0: one, which makes them itself");
}

}  // namespace examples
