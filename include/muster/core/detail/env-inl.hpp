#pragma once

#include <muster/core/env.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/outer_job.hpp>
#include <muster/core/text.hpp>
#include <muster/core/version.hpp>

extern "C" {
#ifdef MUSTER_COMPILED
[[gnu::weak]] extern const char muster_headers_alone;  // in the sources that compile muster themselves
#else
[[gnu::weak]] extern const char muster_compiled_library;  // in the objects of the library
#endif
}

namespace muster { inline namespace v0 {
namespace setting {
inline constexpr setting_info log_level{"log-level", "LEVEL", "warning", "debug, info, warning, error, off"};
inline constexpr setting_info log_ranks{"log-ranks", "RANKS", "0", "ranks that log: 0 or all"};
}  // namespace setting

namespace detail {

// Returns the groups, sorted by the names of the layers, independent of the order of linking.
inline std::vector<detail::setting_group>& setting_groups() {
  static std::vector<detail::setting_group> groups = {
      {"core", "the log", {&setting::log_level}, {&setting::log_ranks}}};
  return groups;
}

inline settings::request request_in(std::string_view word) noexcept {
  if (word == "--help" || word == "-h") return settings::request::help;
  if (word == "--help-all") return settings::request::help_all;
  return word == "--version" ? settings::request::version : settings::request::none;
}

// Refuses a program that contains muster twice: a function would be taken from the one, and a class from the other.
inline void require_one_muster() {
#ifdef MUSTER_COMPILED
  const char* const other = &muster_headers_alone;
#else
  const char* const other = &muster_compiled_library;
#endif
  if (other == nullptr) return;
  throw configuration_error(
      "this program contains muster's headers alone and its compiled library (a source was compiled without "
      "MUSTER_COMPILED); link muster::headers alone, or compile all sources with the flags of the library's target");
}

inline void warn_of_unknown_variables() {
  std::vector<std::string> names;
  for (const auto* row : setting_table()) names.push_back(row->variable());
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("MUSTER_") || name.starts_with("MUSTER_TEST_")) continue;
    if (std::ranges::find(names, name) != names.end()) continue;
    const auto suggestion = closest(name, names);
    log(log_level::warning,
        "unknown variable " + name + " is ignored" + (suggestion ? "; did you mean " + *suggestion + "?" : ""));
  }
}

}  // namespace detail

MUSTER_INLINE std::string setting_info::variable() const {
  std::string result = "MUSTER_";
  for (const char letter : name) result += letter == '-' ? '_' : static_cast<char>(letter - 'a' + 'A');
  return result;
}

MUSTER_INLINE void detail::register_settings(setting_group group) {
  auto& groups = detail::setting_groups();
  groups.insert(std::ranges::upper_bound(groups, group.layer, {}, &setting_group::layer), std::move(group));
}

MUSTER_INLINE std::vector<const setting_info*> setting_table() {
  std::vector<const setting_info*> all;
  for (const auto& group : detail::setting_groups()) {
    all.insert(all.end(), group.common.begin(), group.common.end());
    all.insert(all.end(), group.advanced.begin(), group.advanced.end());
  }
  return all;
}

MUSTER_INLINE std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

MUSTER_INLINE settings::settings() {
  detail::require_one_muster();
  if (detail::has_other_launcher()) detail::leave_outer_job(false);
  for (const auto* row : setting_table()) {
    auto value = environment(row->variable().c_str());
    const auto origin = value ? source::variable : source::fallback;
    entries_.push_back({row, value ? std::move(*value) : std::string(row->fallback), origin});
  }
  detail::warn_of_unknown_variables();
}

MUSTER_INLINE settings::settings(int& argc, char** argv) : settings() {
  int remaining_count = argc > 0 ? 1 : 0;
  bool is_ours = true;
  for (int i = remaining_count; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument == "--") is_ours = false;
    if (is_ours && requested_ == request::none) requested_ = detail::request_in(argument);
    auto named = entries_.end();
    if (is_ours && argument.starts_with("--")) {
      const std::string_view name = argument.substr(2, argument.find('=') - 2);
      named = std::ranges::find(entries_, name, [](const entry& candidate) { return candidate.info->name; });
    }
    if (named == entries_.end()) {
      argv[remaining_count++] = argv[i];
      continue;
    }
    named->origin = source::flag;
    // Hides secrets, since other users can read arguments in the list of processes.
    const auto hide = [&](char* value) {
      if (named->info->placeholder == "SECRET") std::memset(value, 'x', std::strlen(value));
    };
    const bool stands_alone = i + 1 == argc || argv[i + 1][0] == '-';
    if (const auto equals = argument.find('='); equals != std::string_view::npos) {
      named->value = argument.substr(equals + 1);
      hide(argv[i] + equals + 1);
    } else if (named->info->fallback == "off" && named->info->placeholder == "WHEN" && stands_alone) {
      named->value = "on";
    } else if (i + 1 < argc) {
      named->value = argv[++i];
      hide(argv[i]);
    } else {
      const std::string flag = "--" + std::string(named->info->name);
      throw configuration_error(flag + " needs a value (it is the last word on the command line): write " + flag + " " +
                                std::string(named->info->placeholder));
    }
  }
  argc = remaining_count;
  argv[argc] = nullptr;
}

MUSTER_INLINE const settings::entry& settings::at(const setting_info& info) const {
  const auto found =
      std::ranges::find(entries_, info.name, [](const entry& candidate) { return candidate.info->name; });
  if (found != entries_.end()) return *found;
  throw error(error_kind::other, "--" + std::string(info.name) + " has no value (its layer was loaded after the " +
                                     "settings were read); load it earlier");
}

MUSTER_INLINE const std::string& settings::value(const setting_info& info) const { return at(info).value; }
MUSTER_INLINE bool settings::is_default(const setting_info& info) const { return at(info).origin == source::fallback; }

MUSTER_INLINE std::string settings::origin(const setting_info& info) const {
  const source value_source = at(info).origin;
  return value_source == source::flag       ? "--" + std::string(info.name)
         : value_source == source::variable ? info.variable()
                                            : "default";
}

MUSTER_INLINE long settings::integer(const setting_info& info) const {
  return number_from<long>(origin(info), value(info),
                           {static_cast<long>(info.numbers.low), static_cast<long>(info.numbers.high)});
}

MUSTER_INLINE double settings::number(const setting_info& info) const {
  return number_from(origin(info), value(info), info.numbers);
}

MUSTER_INLINE void settings::check_numbers() const {
  for (const auto& [info, text, origin] : entries_) {
    if (info->numbers.high == 0 || (!info->word.empty() && text == info->word)) continue;
    (void)(info->fractions ? number(*info) : static_cast<double>(integer(*info)));
  }
}

MUSTER_INLINE std::size_t settings::choice(const setting_info& info, const std::vector<std::string>& choices) const {
  const auto found = std::ranges::find(choices, value(info));
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  const auto suggestion = closest(value(info), choices);
  throw configuration_error(origin(info) + " cannot be '" + value(info) + "' (known: " + detail::joined(choices, ", ") +
                            ")" + (suggestion ? "; did you mean " + *suggestion + "?" : "; choose a listed name"));
}

MUSTER_INLINE std::string settings_help(bool all) {
  std::string text;
  for (const auto& group : detail::setting_groups()) {
    auto rows = group.common;
    if (all) rows.insert(rows.end(), group.advanced.begin(), group.advanced.end());
    if (!rows.empty()) text += std::string(group.heading) + ":\n";
    for (const auto* row : rows) {
      std::string column = "  --" + std::string(row->name) + " " + std::string(row->placeholder);
      column.resize(std::max<std::size_t>(column.size() + 1, 26), ' ');
      const auto range = row->numbers.high == 0 ? "" : " (" + to_string(row->numbers) + ")";
      text +=
          column + std::string(row->help) + range + " [" + std::string(row->fallback) + ", " + row->variable() + "]\n";
    }
  }
  if (!all) text += "--help-all lists all flags, --version prints the version of muster\n";
  return text;
}

MUSTER_INLINE std::string output_for(settings::request request, std::string_view usage) {
  if (request == settings::request::none) return {};
  if (request == settings::request::version) return "muster " + library_version() + "\n";
  return std::string(usage) + "\nFlags of every muster program [default, variable]:\n" +
         settings_help(request == settings::request::help_all);
}

MUSTER_INLINE std::string library_version() {
  return std::to_string(MUSTER_VERSION_MAJOR) + "." + std::to_string(MUSTER_VERSION_MINOR) + "." +
         std::to_string(MUSTER_VERSION_PATCH);
}

MUSTER_INLINE configuration_error unknown_argument(std::string_view word, std::vector<std::string> own) {
  for (const auto* row : setting_table()) own.push_back("--" + std::string(row->name));
  for (const char* question : {"--help", "--help-all", "--version"}) own.emplace_back(question);
  const auto suggestion = closest(word.substr(0, word.find('=')), own);
  return configuration_error("unknown argument '" + std::string(word) +
                             "' (neither this program nor muster has such a flag); " +
                             (suggestion ? "did you mean " + *suggestion + "?" : "--help lists all"));
}

}}  // namespace muster::v0
