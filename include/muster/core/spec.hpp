// What command lines say as NAME:VALUE,KEY=VALUE: schedules, optimizers, updates, consistencies, modes, codecs; and as
// SCHEME:PATH?KEY=VALUE: sources of data.
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

/// Reads such a text word by word. Whatever it finds wrong is a configuration_error
///
///     WHAT 'TEXT' cannot be used (why); suggestion
///
/// Values stand behind the colon, in their order; keys stand behind them, in any order, each once:
///
///     adam    topk:0.1    momentum:0.1,0.9,decay=1e-4    step:0.1,epochs=82+109,factor=0.1
class spec_reader {
 public:
  /// `what` is what the text is called in errors: "schedule".
  spec_reader(std::string_view what, std::string_view text);

  /// A source of data: SCHEME:PATH?KEY=VALUE&KEY=VALUE. What follows the last '?' are keys if there is a '=' in it, and
  /// part of the path otherwise; a '?' at the end of an address is neither, so that it may end with a query of its own.
  /// The path is the only value, with whatever commas it has. In the value of a key %26 is an ampersand, and so on.
  [[nodiscard]] static spec_reader of_source(std::string_view text);

  /// The whole text as given.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

  /// The name, which must be one of `names`; `example` is what errors suggest.
  [[nodiscard]] std::string name(const std::vector<std::string>& names, const std::string& example) const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Whether another value follows the name.
  [[nodiscard]] bool has_value() const noexcept { return next_ < values_.size(); }
  /// That value, which errors call `called`; it must be there.
  [[nodiscard]] const std::string& value(std::string_view called);
  /// Returns the next value as a path: %20 is a blank in it, and so on. An address (detail::is_far) is returned as it
  /// is given: its server reads it so.
  [[nodiscard]] std::string path();
  /// The same as `least` to `most` paths with commas between them; a comma in a path is %2C.
  [[nodiscard]] std::vector<std::string> paths(std::size_t least, std::size_t most);
  /// The same as a number of at least `low` (above it if `open`).
  [[nodiscard]] double number(std::string_view called, double low, bool open);

  /// What follows `key`, if it is given.
  [[nodiscard]] std::optional<std::string> take(const std::string& key);
  /// The number that follows `key`, or `fallback`.
  [[nodiscard]] double number_of(const std::string& key, double fallback, double low, bool open);
  /// The same for whole numbers.
  [[nodiscard]] std::uint64_t whole_of(const std::string& key, std::uint64_t fallback);
  /// One of some words behind `key`, as what stands for it; or `fallback`.
  template <class T>
  [[nodiscard]] T choice_of(const std::string& key, T fallback, const std::vector<std::pair<std::string, T>>& choices) {
    const auto word = take(key);
    return word ? choose(key, *word, choices) : fallback;
  }

  /// After all values and keys were taken: refuses those that are left. `example` is what the error suggests.
  void finish(const std::string& example) const;

  /// `word` as a number of at least `low` (above it if `open`).
  [[nodiscard]] double read(std::string_view called, std::string_view word, double low, bool open) const;
  /// `word` as a whole number from `low` to `high`.
  [[nodiscard]] std::uint64_t read_whole(std::string_view called, std::string_view word, std::uint64_t low = 0,
                                         std::uint64_t high = std::numeric_limits<std::uint64_t>::max()) const;
  /// What stands for `word`.
  template <class T>
  [[nodiscard]] T choose(std::string_view called, std::string_view word,
                         const std::vector<std::pair<std::string, T>>& choices) const {
    std::vector<std::string> words;
    for (const auto& [each, meaning] : choices) {
      if (each == word) return meaning;
      words.push_back(each);
    }
    refuse_word(std::string(called) + " ", word, words, "choose one of these");
  }
  [[noreturn]] void refuse(const std::string& why, const std::string& suggestion) const;

 private:
  spec_reader() = default;
  void add(std::string key, std::string value);
  // `called`: "", or what the word is called and a blank.
  [[noreturn]] void refuse_word(const std::string& called, std::string_view word, const std::vector<std::string>& known,
                                const std::string& otherwise) const;

  std::string what_;
  std::string text_;
  std::string name_;
  std::vector<std::string> values_;
  std::size_t next_ = 0;  // of the values
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> known_;
};

namespace detail {

/// Returns whether a path is an address: https://SERVER/PATH, http://SERVER/PATH, s3://BUCKET/PATH.
[[nodiscard]] constexpr bool is_far(std::string_view path) noexcept {
  return path.starts_with("https://") || path.starts_with("http://") || path.starts_with("s3://");
}
/// Returns the bytes that a text with %20 for a blank, and so on, stands for.
[[nodiscard]] std::string decoded(std::string_view text);

/// Throws configuration_error unless a program can register a `what` of that name (lower-case letters, digits and
/// underscores) beside those that are known, and `given` says that it gave what it is made by.
void require_registrable(std::string_view what, std::string_view name, const std::vector<std::string>& known,
                         bool given);

}  // namespace detail

}}  // namespace muster::v0
