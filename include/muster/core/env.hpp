// The settings of a job: one table, each with a MUSTER_* variable and a flag twin.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/number.hpp>

namespace muster::inline v0 {

/// The settings, in the order of the table and of `--help`.
enum class setting : int {
  transport,
  between,
  ranks,
  job,
  rendezvous,
  token,
  host,
  algorithm,
  profile,
  timeout,
  check,
  progress,
  cma,
  pin,
  interface,
  connections,
  streams,
  heartbeat,
  missed_beats,
  checksum,
  optimizer,
  compress,
  elastic,
  min_ranks,
  max_ranks,
  patience,
  slow_ranks,
  slow_factor,
  slow_steps,
  mode,
  servers,
  standby,
  remote_servers,
  role,
  replicas,
  consistency,
  trace,
  log_level,
  log_ranks,
  count_
};

/// One row of the table.
struct setting_info {
  setting id;
  std::string_view name;         ///< the flag without its dashes, "log-level"
  std::string_view variable;     ///< "MUSTER_LOG_LEVEL"
  std::string_view placeholder;  ///< "LEVEL"
  std::string_view fallback;     ///< the default
  std::string_view help;
  number_range<double> numbers{};  ///< of a number: what it may be; without a range it is text
  bool fractions = false;          ///< a number need not be whole
  std::string_view word{};         ///< what may stand instead of a number
};

/// Ranks as threads, and of an elastic job.
inline constexpr int most_ranks = 4096;

/// The whole table.
[[nodiscard]] const std::array<setting_info, static_cast<std::size_t>(setting::count_)>& setting_table() noexcept;

/// The values of all settings: the flag if there is one, else the variable, else the default.
class settings {
 public:
  /// From the environment alone.
  settings();
  /// Also from the command line, and takes what it used out of it: afterwards argc and argv hold what is the program's
  /// own. Both `--flag value` and `--flag=value` are read; nothing after `--` is. Throws configuration_error for a flag
  /// without a value.
  settings(int& argc, char** argv);

  [[nodiscard]] const std::string& value(setting which) const;
  /// Where the value came from, for errors and for `muster-info`: "--ranks", "MUSTER_RANKS" or "default".
  [[nodiscard]] std::string origin(setting which) const;
  [[nodiscard]] bool is_default(setting which) const;

  /// The value as a whole number in the range of its row; throws configuration_error naming the flag or variable
  /// otherwise.
  [[nodiscard]] long integer(setting which) const;
  /// The same of a positive number, which may have a fraction.
  [[nodiscard]] double positive(setting which) const;
  /// Throws for the first number that is not one of its range, whether this run uses it or not: `context` calls it.
  void check_numbers() const;
  /// The value's index in `choices`; throws configuration_error listing them otherwise.
  [[nodiscard]] std::size_t choice(setting which, const std::vector<std::string>& choices) const;

 private:
  enum class source { fallback, variable, flag };
  struct entry {
    std::string value;
    source from = source::fallback;
  };
  const entry& at(setting which) const { return entries_[static_cast<std::size_t>(which)]; }

  std::array<entry, static_cast<std::size_t>(setting::count_)> entries_;
};

/// The rows of the table as lines for a program's `--help`, each with its default and its variable.
[[nodiscard]] std::string settings_help();

/// An environment variable, or nothing when it is not set or empty.
[[nodiscard]] std::optional<std::string> environment(const char* name);

}  // namespace muster::inline v0
