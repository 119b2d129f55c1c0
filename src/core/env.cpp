#include <muster/core/env.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <muster/core/log.hpp>
#include <muster/core/version.hpp>

#include "text.hpp"

// Of the layers that the program is linked with.
extern "C" {
[[gnu::weak]] bool muster_register_settings_of_comm() noexcept;
[[gnu::weak]] bool muster_register_settings_of_elastic() noexcept;
[[gnu::weak]] bool muster_register_settings_of_ps() noexcept;
[[gnu::weak]] bool muster_register_settings_of_train() noexcept;
}

namespace muster { inline namespace v0 {
namespace setting {
constexpr setting_info log_level{"log-level", "LEVEL", "warning", "debug, info, warning, error, off"};
constexpr setting_info log_ranks{"log-ranks", "RANKS", "0", "ranks that log: 0 or all"};
}  // namespace setting

namespace {

// By the names of the layers, so that the order is not that of linking.
std::vector<detail::setting_group>& setting_groups() {
  static std::vector<detail::setting_group> groups = {
      {"core", "the log", {&setting::log_level}, {&setting::log_ranks}}};
  return groups;
}

settings::question question_in(std::string_view word) noexcept {
  if (word == "--help" || word == "-h") return settings::question::help;
  if (word == "--help-all") return settings::question::help_all;
  return word == "--version" ? settings::question::version : settings::question::none;
}

// A context may be a variable of the program's that is made before those of the library.
void register_layers() {
  for (auto* const layer : {&muster_register_settings_of_comm, &muster_register_settings_of_elastic,
                            &muster_register_settings_of_ps, &muster_register_settings_of_train}) {
    if (layer != nullptr) layer();
  }
}

void warn_of_unknown_variables() {
  std::vector<std::string> known;
  for (const auto* row : setting_table()) known.push_back(row->variable());
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("MUSTER_") || name.starts_with("MUSTER_TEST_")) continue;
    if (std::ranges::find(known, name) != known.end()) continue;
    const auto meant = closest(name, known);
    log(log_level::warning,
        "unknown variable " + name + " is ignored" + (meant ? "; did you mean " + *meant + "?" : ""));
  }
}

}  // namespace

std::string setting_info::variable() const {
  std::string made = "MUSTER_";
  for (const char letter : name) made += letter == '-' ? '_' : static_cast<char>(letter - 'a' + 'A');
  return made;
}

bool detail::register_settings(setting_group group) {
  auto& groups = setting_groups();
  groups.insert(std::ranges::upper_bound(groups, group.layer, {}, &setting_group::layer), std::move(group));
  return true;
}

std::vector<const setting_info*> setting_table() {
  std::vector<const setting_info*> all;
  for (const auto& group : setting_groups()) {
    all.insert(all.end(), group.common.begin(), group.common.end());
    all.insert(all.end(), group.rows.begin(), group.rows.end());
  }
  return all;
}

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

settings::settings() {
  register_layers();
  for (const auto* row : setting_table()) {
    auto value = environment(row->variable().c_str());
    const auto from = value ? source::variable : source::fallback;
    entries_.push_back({row, value ? std::move(*value) : std::string(row->fallback), from});
  }
  warn_of_unknown_variables();
}

settings::settings(int& argc, char** argv) : settings() {
  int kept = argc > 0 ? 1 : 0;
  bool ours = true;
  for (int i = kept; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument == "--") ours = false;
    if (ours && asks_ == question::none) asks_ = question_in(argument);
    auto named = entries_.end();
    if (ours && argument.starts_with("--")) {
      const std::string_view name = argument.substr(2, argument.find('=') - 2);
      named = std::ranges::find(entries_, name, [](const entry& one) { return one.of->name; });
    }
    if (named == entries_.end()) {
      argv[kept++] = argv[i];
      continue;
    }
    named->from = source::flag;
    // Other users see arguments in the list of processes.
    const auto hide = [&](char* value) {
      if (named->of->placeholder == "SECRET") std::memset(value, 'x', std::strlen(value));
    };
    const bool stands_alone = i + 1 == argc || argv[i + 1][0] == '-';
    if (const auto equals = argument.find('='); equals != std::string_view::npos) {
      named->value = argument.substr(equals + 1);
      hide(argv[i] + equals + 1);
    } else if (named->of->fallback == "off" && named->of->placeholder == "WHEN" && stands_alone) {
      named->value = "on";
    } else if (i + 1 < argc) {
      named->value = argv[++i];
      hide(argv[i]);
    } else {
      const std::string flag = "--" + std::string(named->of->name);
      throw configuration_error(flag + " needs a value (it is the last word of the command line): write " + flag + " " +
                                std::string(named->of->placeholder));
    }
  }
  argc = kept;
  argv[argc] = nullptr;
}

const settings::entry& settings::at(const setting_info& which) const {
  const auto found = std::ranges::find(entries_, which.name, [](const entry& one) { return one.of->name; });
  if (found != entries_.end()) return *found;
  throw error(error_kind::other, "--" + std::string(which.name) + " has no value (its layer was loaded after the " +
                                     "settings were read); load it before");
}

const std::string& settings::value(const setting_info& which) const { return at(which).value; }
bool settings::is_default(const setting_info& which) const { return at(which).from == source::fallback; }

std::string settings::origin(const setting_info& which) const {
  const source from = at(which).from;
  return from == source::flag       ? "--" + std::string(which.name)
         : from == source::variable ? which.variable()
                                    : "default";
}

long settings::integer(const setting_info& which) const {
  return number_from<long>(origin(which), value(which),
                           {static_cast<long>(which.numbers.low), static_cast<long>(which.numbers.high)});
}

double settings::positive(const setting_info& which) const {
  return number_from(origin(which), value(which), which.numbers);
}

void settings::check_numbers() const {
  for (const auto& [of, given, from] : entries_) {
    if (of->numbers.high == 0 || (!of->word.empty() && given == of->word)) continue;
    (void)(of->fractions ? positive(*of) : static_cast<double>(integer(*of)));
  }
}

std::size_t settings::choice(const setting_info& which, const std::vector<std::string>& choices) const {
  const auto found = std::ranges::find(choices, value(which));
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  const auto meant = closest(value(which), choices);
  throw configuration_error(origin(which) + " cannot be '" + value(which) +
                            "' (known: " + detail::joined(choices, ", ") + ")" +
                            (meant ? "; did you mean " + *meant + "?" : "; choose one of these"));
}

std::string settings_help(bool all) {
  std::string text;
  for (const auto& group : setting_groups()) {
    auto rows = group.common;
    if (all) rows.insert(rows.end(), group.rows.begin(), group.rows.end());
    if (!rows.empty()) text += std::string(group.heading) + ":\n";
    for (const auto* row : rows) {
      std::string left = "  --" + std::string(row->name) + " " + std::string(row->placeholder);
      left.resize(std::max<std::size_t>(left.size() + 1, 26), ' ');
      const auto range = row->numbers.high == 0 ? "" : " (" + to_string(row->numbers) + ")";
      text +=
          left + std::string(row->help) + range + " [" + std::string(row->fallback) + ", " + row->variable() + "]\n";
    }
  }
  if (!all) text += "--help-all lists all flags, --version prints the version of muster\n";
  return text;
}

std::string answer_to(settings::question asked, std::string_view usage) {
  if (asked == settings::question::none) return {};
  if (asked == settings::question::version) return "muster " + library_version() + "\n";
  return std::string(usage) + "\nFlags of every muster program [default, variable]:\n" +
         settings_help(asked == settings::question::help_all);
}

std::string library_version() {
  return std::to_string(MUSTER_VERSION_MAJOR) + "." + std::to_string(MUSTER_VERSION_MINOR) + "." +
         std::to_string(MUSTER_VERSION_PATCH);
}

configuration_error unknown_argument(std::string_view word, std::vector<std::string> own) {
  for (const auto* row : setting_table()) own.push_back("--" + std::string(row->name));
  for (const char* question : {"--help", "--help-all", "--version"}) own.emplace_back(question);
  const auto meant = closest(word.substr(0, word.find('=')), own);
  return configuration_error("unknown argument '" + std::string(word) +
                             "' (neither a flag of this program nor one of muster); " +
                             (meant ? "did you mean " + *meant + "?" : "--help lists all"));
}

}}  // namespace muster::v0
