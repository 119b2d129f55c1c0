#include "source_options.hpp"

#include <algorithm>
#include <charconv>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0::detail {
namespace {

std::string decoded(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned code = 0;
    const char* const digits = text.data() + at + 1;
    if (text[at] == '%' && at + 2 < text.size() && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      plain += static_cast<char>(code);
      at += 2;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = text.find(at);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

source_options::source_options(std::string_view specification) : text_(specification) {
  const auto colon = specification.find(':');
  scheme_ = specification.substr(0, colon);
  if (colon == std::string_view::npos || scheme_.empty()) {
    const std::string path(specification.substr(colon == 0 ? 1 : 0));
    throw configuration_error("'" + text_ +
                              "' does not say what kind of data it is (a source is SCHEME:PATH); write libsvm:" +
                              (path.empty() ? "PATH" : path));
  }
  std::string_view rest = specification.substr(colon + 1);
  const auto mark = rest.rfind('?');
  if (mark != std::string_view::npos && rest.find('=', mark) != std::string_view::npos) {
    for (const std::string& option : split(rest.substr(mark + 1), '&')) {
      const auto equals = option.find('=');
      if (equals == 0 || equals == std::string::npos) {
        throw configuration_error("'" + option + "' in '" + text_ +
                                  "' is no option (an option is name=value, and & is between two); write %26 for an "
                                  "ampersand in a value");
      }
      given_[option.substr(0, equals)] = decoded(std::string_view(option).substr(equals + 1));
    }
    rest = rest.substr(0, mark);
  }
  path_ = rest;
  if (path_.empty()) {
    throw configuration_error("'" + text_ + "' names no file (nothing follows the colon); write " + scheme_ + ":PATH");
  }
}

std::vector<std::string> source_options::paths(std::size_t least, std::size_t most) const {
  auto parts = split(path_, ',');
  const bool named = std::none_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); });
  if (named && parts.size() >= least && parts.size() <= most) return parts;
  throw configuration_error("'" + text_ + "' does not name its files (" + std::to_string(least) +
                            (most == least ? ""
                             : most > 2    ? " or more"
                                           : " or " + std::to_string(most)) +
                            " paths with commas between them); correct it");
}

std::optional<std::string> source_options::take(const std::string& name) {
  known_.push_back(name);
  const auto found = given_.find(name);
  if (found == given_.end()) return std::nullopt;
  std::optional<std::string> value = std::move(found->second);
  given_.erase(found);
  return value;
}

void source_options::refuse(const std::string& name, const std::string& value, const std::string& suggestion) const {
  throw configuration_error("option " + name + "=" + value + " of '" + text_ + "' cannot be used; " + suggestion);
}

void source_options::refuse_choice(const std::string& name, const std::string& value,
                                   const std::vector<std::string>& words) const {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  refuse(name, value, "choose one of " + list);
}

std::uint64_t source_options::number(const std::string& name, std::uint64_t fallback) {
  const auto value = take(name);
  if (!value) return fallback;
  const auto read = parse_number<std::uint64_t>(*value);
  if (!read) refuse(name, *value, "give a whole number");
  return *read;
}

bool source_options::flag(const std::string& name, bool fallback) {
  return choice<bool>(name, fallback, {{"1", true}, {"0", false}});
}

void source_options::finish() const {
  if (given_.empty()) return;
  const auto& name = given_.begin()->first;
  std::string list;
  for (const std::string& known : known_) list += (list.empty() ? "" : ", ") + known;
  const auto meant = closest(name, known_);
  throw configuration_error("unknown option '" + name + "' in '" + text_ + "' (" + scheme_ + " has " +
                            (list.empty() ? "none" : list) + "); " +
                            (meant ? "did you mean " + *meant + "?" : "leave it out"));
}

}  // namespace muster::inline v0::detail
