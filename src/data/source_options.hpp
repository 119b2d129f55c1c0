// "SCHEME:REST?name=value&name=value" taken apart; private to open.cpp and muster's own sources.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::inline v0::detail {

/// A specification of a source. Whoever opens it takes out the options it knows, and then calls finish().
class source_options {
 public:
  /// What follows the last '?' are options if there is a '=' in it, and part of the path otherwise. In a value %26 is
  /// an ampersand, and so on. Throws configuration_error for a specification that is none.
  explicit source_options(std::string_view specification);

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const std::string& scheme() const noexcept { return scheme_; }
  /// What is between colon and options.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The same, cut at its commas. Throws configuration_error unless there are `least` to `most`.
  [[nodiscard]] std::vector<std::string> paths(std::size_t least, std::size_t most) const;

  /// The value of an option, if it was given.
  [[nodiscard]] std::optional<std::string> take(const std::string& name);
  [[nodiscard]] std::uint64_t number(const std::string& name, std::uint64_t fallback);
  [[nodiscard]] bool flag(const std::string& name, bool fallback);
  /// One of some words, as what stands for it.
  template <class T>
  T choice(const std::string& name, T fallback, const std::vector<std::pair<std::string, T>>& choices) {
    const auto value = take(name);
    if (!value) return fallback;
    std::vector<std::string> words;
    for (const auto& [word, meaning] : choices) {
      if (word == *value) return meaning;
      words.push_back(word);
    }
    refuse_choice(name, *value, words);
  }
  /// Throws configuration_error for options that nobody has taken.
  void finish() const;

  [[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& suggestion) const;

 private:
  [[noreturn]] void refuse_choice(const std::string& name, const std::string& value,
                                  const std::vector<std::string>& words) const;
  std::string text_;
  std::string scheme_;
  std::string path_;
  std::map<std::string, std::string> given_;
  std::vector<std::string> known_;
};

}  // namespace muster::inline v0::detail
