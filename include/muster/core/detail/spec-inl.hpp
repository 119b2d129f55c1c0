#pragma once

#include <muster/core/spec.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <span>

#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE std::string detail::decoded(std::string_view text) {
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

MUSTER_INLINE spec_reader::spec_reader(std::string_view subject, std::string_view text)
    : subject_(subject), text_(text) {
  const auto words = detail::split(text, ',');
  const auto colon = words.front().find(':');
  name_ = words.front().substr(0, colon);
  const bool valued = colon != std::string_view::npos;
  if (valued) values_.emplace_back(words.front().substr(colon + 1));
  for (const auto word : std::span(words).subspan(1)) {
    const auto equals = word.find('=');
    const bool keyed = equals != std::string_view::npos;
    if (valued && !keyed && keys_.empty())
      values_.emplace_back(word);
    else
      add(std::string(word.substr(0, equals)), std::string(keyed ? word.substr(equals + 1) : ""));
  }
}

MUSTER_INLINE spec_reader spec_reader::of_source(std::string_view text) {
  spec_reader result;
  result.subject_ = "source";
  result.text_ = text;
  const auto colon = text.find(':');
  result.name_ = text.substr(0, colon);
  if (colon == std::string_view::npos || colon == 0) {
    const std::string path(text.substr(colon == 0 ? 1 : 0));
    result.refuse("it does not name the kind of data: a source is SCHEME:PATH",
                  "write libsvm:" + (path.empty() ? "PATH" : path));
  }
  std::string_view path = text.substr(colon + 1);
  const auto mark = path.rfind('?');
  if (path.ends_with('?') && (detail::is_remote(text) || detail::is_remote(path))) {
    path.remove_suffix(1);
  } else if (mark != std::string_view::npos && path.find('=', mark) != std::string_view::npos) {
    for (const auto word : detail::split(path.substr(mark + 1), '&')) {
      const auto equals = word.find('=');
      if (equals == 0 || equals == std::string_view::npos) {
        result.refuse("'" + std::string(word) + "' is not KEY=VALUE, and & separates two keys",
                      "write %26 for an ampersand in a value");
      }
      result.add(std::string(word.substr(0, equals)), detail::decoded(word.substr(equals + 1)));
    }
    path = path.substr(0, mark);
  }
  if (path.empty()) result.refuse("nothing follows the colon", "write " + result.name_ + ":PATH");
  result.values_.emplace_back(path);
  return result;
}

MUSTER_INLINE void spec_reader::add(std::string key, std::string value) {
  const auto is_same = [&](const auto& entry) { return entry.first == key; };
  if (std::any_of(keys_.begin(), keys_.end(), is_same)) refuse("'" + key + "' is given twice", "give it once");
  keys_.emplace_back(std::move(key), std::move(value));
}

MUSTER_INLINE void spec_reader::refuse(const std::string& reason, const std::string& suggestion) const {
  throw configuration_error(subject_ + " '" + detail::without_secrets(text_) + "' cannot be used (" +
                            detail::without_secrets(reason) + "); " + detail::without_secrets(suggestion));
}

MUSTER_INLINE void spec_reader::refuse_word(const std::string& called, std::string_view word,
                                            const std::vector<std::string>& known_words,
                                            const std::string& otherwise) const {
  const auto suggestion = closest(word, known_words);
  const auto colon = std::min(word.find(':'), word.size());  // the value of a key follows an equals sign
  const bool is_key = colon < word.size() && suggestion && *suggestion == word.substr(0, colon);
  refuse(
      called + "'" + std::string(word) + "' is " +
          (known_words.empty() ? "one too many: it takes no keys" : "not one of " + detail::joined(known_words, ", ")),
      is_key       ? "write " + *suggestion + '=' + std::string(word.substr(colon + 1))
      : suggestion ? "did you mean '" + *suggestion + "'?"
                   : otherwise);
}

MUSTER_INLINE std::string spec_reader::name(const std::vector<std::string>& names, const std::string& example) const {
  if (std::find(names.begin(), names.end(), name_) == names.end()) refuse_word("", name_, names, "write " + example);
  return name_;
}

MUSTER_INLINE const std::string& spec_reader::value(std::string_view called) {
  if (!has_value()) {
    std::string word(called);
    std::ranges::transform(word, word.begin(), [](unsigned char letter) { return std::toupper(letter); });
    std::string before = name_ + ":";
    for (const auto& each : values_) before += each + ",";
    refuse("it has no " + std::string(called), "write " + before + word);
  }
  return values_[next_++];
}

MUSTER_INLINE std::string spec_reader::path() {
  const std::string& given = value("path");
  return detail::is_remote(text_) || detail::is_remote(given) ? given : detail::decoded(given);
}

MUSTER_INLINE std::vector<std::string> spec_reader::paths(std::size_t least, std::size_t most) {
  std::vector<std::string> found;
  const bool is_address = detail::is_remote(text_);
  for (const auto word : detail::split(value("path"), ','))
    found.push_back(is_address || detail::is_remote(word) ? std::string(word) : detail::decoded(word));
  const bool named = std::ranges::none_of(found, [](const auto& path) { return path.empty(); });
  if (named && found.size() >= least && found.size() <= most) return found;
  refuse(named ? "it names " + std::to_string(found.size()) + " files" : "there is nothing between two commas",
         "give " + std::to_string(least) +
             (most == least ? ""
              : most > 2    ? " or more"
                            : " or " + std::to_string(most)) +
             " with commas between them; a comma in a path is %2C");
}

MUSTER_INLINE double spec_reader::number(std::string_view called, double low, bool open) {
  return read(called, value(called), low, open);
}

MUSTER_INLINE std::optional<std::string> spec_reader::take(const std::string& key) {
  known_keys_.push_back(key);
  const auto found = std::find_if(keys_.begin(), keys_.end(), [&](const auto& entry) { return entry.first == key; });
  if (found == keys_.end()) return std::nullopt;
  std::optional<std::string> value = std::move(found->second);
  keys_.erase(found);
  return value;
}

MUSTER_INLINE double spec_reader::number_of(const std::string& key, double fallback, double low, bool open) {
  const auto word = take(key);
  return word ? read(key, *word, low, open) : fallback;
}

MUSTER_INLINE std::uint64_t spec_reader::whole_of(const std::string& key, std::uint64_t fallback) {
  const auto word = take(key);
  return word ? read_whole(key, *word) : fallback;
}

MUSTER_INLINE double spec_reader::read(std::string_view called, std::string_view word, double low, bool open) const {
  const auto value = parse_number<double>(word);
  if (!value) refuse(std::string(called) + " '" + std::string(word) + "' is not a number", "write one such as 0.1");
  if (*value < low || (open && *value == low)) {
    refuse(std::string(called) + " " + std::string(word) + " is out of range",
           open ? "give a positive one" : "give 0 or a larger number");
  }
  return *value;
}

MUSTER_INLINE std::uint64_t spec_reader::read_whole(std::string_view called, std::string_view word, std::uint64_t low,
                                                    std::uint64_t high) const {
  const auto value = parse_number<std::uint64_t>(word);
  if (value && *value >= low && *value <= high) return *value;
  refuse(std::string(called) + " '" + std::string(word) + "' is not a whole number from " + std::to_string(low) +
             (high < std::numeric_limits<std::uint64_t>::max() ? " to " + std::to_string(high) : " on"),
         "give a number in that range");
}

MUSTER_INLINE void spec_reader::finish(const std::string& example) const {
  if (has_value())
    refuse(
        "'" + name_ + "' takes " + (next_ == 0 ? "no value" : "no more values") + ", and not '" + values_[next_] + "'",
        "write such as " + example);
  if (keys_.empty()) return;
  const bool is_address = detail::is_remote(text_) || (!values_.empty() && detail::is_remote(values_.front()));
  refuse_word("", keys_.front().first, known_keys_,
              is_address ? "write ADDRESS?QUERY?" + (known_keys_.empty() ? "" : known_keys_.front() + "=...") +
                               " for an address with a query, or ADDRESS?QUERY? without options"
                         : "write such as " + example);
}

MUSTER_INLINE void detail::require_registrable(std::string_view subject, std::string_view name,
                                               const std::vector<std::string>& known, bool has_factory) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  const auto refuse = [&](const std::string& reason, const char* suggestion) {
    throw configuration_error(std::string(subject) + " '" + std::string(name) + "' cannot be registered (" + reason +
                              "); " + suggestion);
  };
  if (name.empty() || name.find_first_not_of(letters) != std::string_view::npos)
    refuse("the name is invalid", "use lower-case letters, digits and underscores");
  if (std::ranges::find(known, name) != known.end()) refuse("the name exists already", "use another name");
  if (!has_factory) refuse("the function that creates it is null", "pass a function");
}

}}  // namespace muster::v0
