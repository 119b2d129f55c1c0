// The settings of a job: each is a flag and a MUSTER_* variable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 {

/// One setting: a flag and its variable. The layer that reads it declares it (`<muster/comm/settings.hpp>` and so on),
/// in the namespace `setting`.
struct setting_info {
  std::string_view name;         ///< the flag without its dashes, "log-level"
  std::string_view placeholder;  ///< "LEVEL"
  std::string_view fallback;     ///< the default
  std::string_view help;
  number_range<double> numbers{};  ///< of a number: what it may be; without a range it is text
  bool fractions = false;          ///< a number need not be whole
  std::string_view word{};         ///< what may stand instead of a number

  /// "MUSTER_LOG_LEVEL"
  [[nodiscard]] std::string variable() const;
};

/// The settings of core; those of the other layers stand in the same namespace.
namespace setting {
extern const setting_info log_level, log_ranks;
}  // namespace setting

/// Ranks as threads, and of an elastic job.
inline constexpr int most_ranks = 4096;

/// The settings of all layers that are linked, in the order of `--help`.
[[nodiscard]] std::vector<const setting_info*> setting_table();

namespace detail {

/// The range of a setting that is a number.
[[nodiscard]] constexpr number_range<double> from(double low, double high) noexcept { return {low, high}; }

/// The settings of a layer, and the heading that `--help` has above them.
struct setting_group {
  std::string_view layer;
  std::string_view heading;
  std::vector<const setting_info*> common;  ///< in `--help`
  std::vector<const setting_info*> rows{};  ///< in `--help-all` too
};
/// Before main, or before a context that is made earlier, by a function with the name
/// `muster_register_settings_of_LAYER` and C linkage. A variable `muster_settings_of_LAYER`, whose first value the
/// function gives, is what the target of the layer has the linker ask for: a program knows the settings of what it is
/// linked with. Returns true.
bool register_settings(setting_group group);

}  // namespace detail

/// The values of all settings: the flag if there is one, else the variable, else the default.
class settings {
 public:
  /// From the environment alone.
  settings();
  /// Also from the command line, and takes what it used out of it: afterwards argc and argv hold what is the program's
  /// own. Both `--flag value` and `--flag=value` are read; nothing after `--` is. What is off by default is on where
  /// its flag stands alone: `--elastic`. Throws configuration_error for another flag without a value.
  settings(int& argc, char** argv);

  /// What a command line asks for instead of a run: the first of `--help` (or `-h`), `--help-all` and `--version` that
  /// is no flag's value. They stay on the command line.
  enum class question { none, help, help_all, version };
  [[nodiscard]] question asks() const noexcept { return asks_; }

  /// The text as given, not checked; valid as long as this object. `which` is one of `setting_table()`.
  [[nodiscard]] const std::string& value(const setting_info& which) const;
  /// Where the value came from, for errors and for `muster-info`: "--ranks", "MUSTER_RANKS" or "default".
  [[nodiscard]] std::string origin(const setting_info& which) const;
  [[nodiscard]] bool is_default(const setting_info& which) const;

  /// The value as a whole number in the range of its row; throws configuration_error naming the flag or variable
  /// otherwise.
  [[nodiscard]] long integer(const setting_info& which) const;
  /// The same of a positive number, which may have a fraction.
  [[nodiscard]] double positive(const setting_info& which) const;
  /// Throws for the first number that is not one of its range, whether this run uses it or not: `context` calls it.
  void check_numbers() const;
  /// The value's index in `choices`; throws configuration_error listing them otherwise.
  [[nodiscard]] std::size_t choice(const setting_info& which, const std::vector<std::string>& choices) const;

 private:
  enum class source { fallback, variable, flag };
  struct entry {
    const setting_info* of = nullptr;
    std::string value;
    source from = source::fallback;
  };
  [[nodiscard]] const entry& at(const setting_info& which) const;

  std::vector<entry> entries_;
  question asks_ = question::none;
};

/// The settings that most users need as lines for a program's `--help`, or `all` of them, by layer, each with its
/// default and its variable.
[[nodiscard]] std::string settings_help(bool all = false);

/// What a program prints that is asked so: "muster 0.1.0", or `usage` and the settings below it; empty for none.
[[nodiscard]] std::string answer_to(settings::question asked, std::string_view usage);

/// The version of the library that is linked: "0.1.0".
[[nodiscard]] std::string library_version();

/// The error for an argument that is neither among `own`, the flags of the program, nor one of muster.
[[nodiscard]] configuration_error unknown_argument(std::string_view word, std::vector<std::string> own = {});

/// An environment variable, or nothing when it is not set or empty.
[[nodiscard]] std::optional<std::string> environment(const char* name);

}}  // namespace muster::v0
