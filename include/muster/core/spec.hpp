// Parsers of specifications on command lines: NAME:VALUE,KEY=VALUE for schedules, optimizers, updates, consistencies,
// modes and codecs, and SCHEME:PATH?KEY=VALUE for sources of data.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 {

/// A parser that reads a specification word by word. Each mistake throws a configuration_error
///
///     SUBJECT 'TEXT' cannot be used (why); suggestion
///
/// Values follow the colon, in their order. Keys follow the values, in any order, each at most once:
///
///     adam    topk:0.1    momentum:0.1,0.9,decay=1e-4    step:0.1,epochs=82+109,factor=0.1
class spec_reader {
 public:
  /// Parses `text`. `subject` is the name of the text in errors, such as "schedule".
  spec_reader(std::string_view subject, std::string_view text);

  /// Parses a source of data: SCHEME:PATH?KEY=VALUE&KEY=VALUE. The text after the last '?' contains keys if it contains
  /// a '=', and is part of the path otherwise. A '?' at the end of an address is dropped, so that the address may end
  /// with its own query. The path is the only value, with all its commas. In the value of a key %26 is an ampersand,
  /// and so on.
  [[nodiscard]] static spec_reader of_source(std::string_view text);

  /// Returns the complete text as given.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

  /// Returns the name, which must be an element of `names`. Errors suggest `example`.
  [[nodiscard]] std::string name(const std::vector<std::string>& names, const std::string& example) const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Returns true if another value follows the name.
  [[nodiscard]] bool has_value() const noexcept { return next_ < values_.size(); }
  /// Returns the next value, which must exist. Errors call the value `called`.
  [[nodiscard]] const std::string& value(std::string_view called);
  /// Returns the next value as a path. In the path %20 is a blank, and so on. An address (detail::is_remote) is
  /// returned as given, because its server decodes the address.
  [[nodiscard]] std::string path();
  /// Returns the next value as `least` to `most` paths with commas between them. In each path %2C is a comma, and so
  /// on.
  [[nodiscard]] std::vector<std::string> paths(std::size_t least, std::size_t most);
  /// Returns the next value as a number of at least `low` (above `low` if `open`).
  [[nodiscard]] double number(std::string_view called, double low, bool open);

  /// Returns the value of `key`, if it is given.
  [[nodiscard]] std::optional<std::string> take(const std::string& key);
  /// Returns the number after `key`, or `fallback`.
  [[nodiscard]] double number_of(const std::string& key, double fallback, double low, bool open);
  /// Returns the integer after `key`, or `fallback`.
  [[nodiscard]] std::uint64_t whole_of(const std::string& key, std::uint64_t fallback);
  /// Returns the meaning of the word after `key` among `choices`, or `fallback`.
  template <class T>
  [[nodiscard]] T choice_of(const std::string& key, T fallback, const std::vector<std::pair<std::string, T>>& choices) {
    const auto word = take(key);
    return word ? choose(key, *word, choices) : fallback;
  }

  /// Rejects values and keys that were not read. Call it after all values and keys are read. Errors suggest `example`.
  void finish(const std::string& example) const;

  /// Parses `word` as a number of at least `low` (above `low` if `open`).
  [[nodiscard]] double read(std::string_view called, std::string_view word, double low, bool open) const;
  /// Parses `word` as an integer from `low` to `high`.
  [[nodiscard]] std::uint64_t read_whole(std::string_view called, std::string_view word, std::uint64_t low = 0,
                                         std::uint64_t high = std::numeric_limits<std::uint64_t>::max()) const;
  /// Returns the meaning of `word` among `choices`.
  template <class T>
  [[nodiscard]] T choose(std::string_view called, std::string_view word,
                         const std::vector<std::pair<std::string, T>>& choices) const {
    std::vector<std::string> words;
    for (const auto& [each, meaning] : choices) {
      if (each == word) return meaning;
      words.push_back(each);
    }
    refuse_word(std::string(called) + " ", word, words, "choose a listed name");
  }
  [[noreturn]] void refuse(const std::string& reason, const std::string& suggestion) const;

 private:
  spec_reader() = default;
  void add(std::string key, std::string value);
  // `called`: empty, or the name of the word followed by a space.
  [[noreturn]] void refuse_word(const std::string& called, std::string_view word,
                                const std::vector<std::string>& known_words, const std::string& otherwise) const;

  std::string subject_;
  std::string text_;
  std::string name_;
  std::vector<std::string> values_;
  std::size_t next_ = 0;  // index of the next value
  std::vector<std::pair<std::string, std::string>> keys_;
  std::vector<std::string> known_keys_;
};

namespace detail {

/// Returns true if a path is an address: https://SERVER/PATH, http://SERVER/PATH, s3://BUCKET/PATH.
[[nodiscard]] constexpr bool is_remote(std::string_view path) noexcept {
  return path.starts_with("https://") || path.starts_with("http://") || path.starts_with("s3://");
}
/// Returns the bytes of a percent-encoded text, in which %20 is a blank, and so on.
[[nodiscard]] std::string decoded(std::string_view text);

/// Throws configuration_error unless a program can register a `subject` with that name (lower-case letters, digits and
/// underscores) that is not in `known`. `has_factory` is true if the program passed a non-empty factory.
void require_registrable(std::string_view subject, std::string_view name, const std::vector<std::string>& known,
                         bool has_factory);

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
