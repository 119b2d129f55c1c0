// The settings of a job: each setting is a flag and a MUSTER_* variable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 {

/// A setting: a flag and its variable. The layer that reads a setting declares it in the namespace `setting`
/// (`<muster/comm/comm_settings.hpp>` and so on).
struct setting_info {
  std::string_view name;         ///< the flag without its dashes, "log-level"
  std::string_view placeholder;  ///< "LEVEL"
  std::string_view fallback;     ///< the default
  std::string_view help;
  number_range<double> numbers{};  ///< range of a number; without a range the setting is text
  bool fractions = false;          ///< true if a number may have a fraction
  std::string_view word{};         ///< a word that is valid instead of a number

  /// Returns the variable's name, such as "MUSTER_LOG_LEVEL".
  [[nodiscard]] std::string variable() const;
};

/// The settings of core. The settings of the other layers are in the same namespace.
namespace setting {
extern const setting_info log_level, log_ranks;
}  // namespace setting

/// Maximum number of ranks as threads, of ranks that muster-launch starts, and of ranks in an elastic job.
inline constexpr int most_ranks = 4096;

/// Returns the settings of all linked layers, in the order of `--help`.
[[nodiscard]] std::vector<const setting_info*> setting_table();

namespace detail {

/// Returns the range of a numeric setting.
[[nodiscard]] constexpr number_range<double> value_range(double low, double high) noexcept { return {low, high}; }

/// The settings of a layer, and their heading in `--help`.
struct setting_group {
  std::string_view layer;
  std::string_view heading;
  std::vector<const setting_info*> common;      ///< settings in `--help` and `--help-all`
  std::vector<const setting_info*> advanced{};  ///< settings in `--help-all` only
};
/// Registers the settings of a layer. The layer's plug-in calls it, so a program knows the settings of its linked
/// layers.
void register_settings(setting_group group);

}  // namespace detail

/// The values of all settings: the flag if it is given, else the variable, else the default.
class settings {
 public:
  /// Reads the environment only.
  settings();
  /// Reads the environment and the command line, and removes the used arguments: afterwards argc and argv contain the
  /// program's own arguments. Reads both `--flag value` and `--flag=value`, and nothing after `--`. A flag without a
  /// value enables a setting that is off by default: `--elastic`. Throws configuration_error for another flag without a
  /// value.
  settings(int& argc, char** argv);

  /// A request on the command line instead of a run: the first of `--help` (or `-h`), `--help-all` and `--version` that
  /// is not the value of a flag. These arguments stay on the command line.
  enum class request { none, help, help_all, version };
  [[nodiscard]] request requested() const noexcept { return requested_; }

  /// Returns the text as given, without checks. Valid as long as this object. `info` is an element of
  /// `setting_table()`.
  [[nodiscard]] const std::string& value(const setting_info& info) const;
  /// Returns the origin of the value, for errors and for `muster-info`: "--ranks", "MUSTER_RANKS" or "default".
  [[nodiscard]] std::string origin(const setting_info& info) const;
  /// Returns true if neither the flag nor the variable is given, whatever the value.
  [[nodiscard]] bool is_default(const setting_info& info) const;

  /// Returns the value as an integer in the setting's range. Otherwise throws configuration_error that names the flag
  /// or variable.
  [[nodiscard]] long integer(const setting_info& info) const;
  /// Returns the value as a number in the setting's range, which may have a fraction. Throws like `integer`.
  [[nodiscard]] double number(const setting_info& info) const;
  /// Throws for the first number outside its range, even if this run does not use the setting. Called by `context`.
  void check_numbers() const;
  /// Returns the index in `choices` of the value of the setting `info`. Throws configuration_error with the list of
  /// choices for another value.
  [[nodiscard]] std::size_t choice(const setting_info& info, const std::vector<std::string>& choices) const;

 private:
  enum class source { fallback, variable, flag };
  struct entry {
    const setting_info* info = nullptr;
    std::string value;
    source origin = source::fallback;
  };
  [[nodiscard]] const entry& at(const setting_info& info) const;

  std::vector<entry> entries_;
  request requested_ = request::none;
};

/// Returns the settings that most users need, or `all` settings, as lines for a program's `--help`, by layer, each with
/// its default and its variable.
[[nodiscard]] std::string settings_help(bool all = false);

/// Returns the output for a request: "muster 0.1.0", or `usage` followed by the settings; empty for none.
[[nodiscard]] std::string output_for(settings::request request, std::string_view usage);

/// Returns the version of the linked library: "0.1.0".
[[nodiscard]] std::string library_version();

/// Returns the error for an argument that is neither in `own`, the flags of the program, nor a flag of muster.
[[nodiscard]] configuration_error unknown_argument(std::string_view word, std::vector<std::string> own = {});

/// Returns an environment variable, or nothing when it is not set or empty.
[[nodiscard]] std::optional<std::string> environment(const char* name);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
