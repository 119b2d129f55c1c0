// What command lines say as NAME:NUMBER,key=value,...: schedules and optimizers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::inline v0::detail {

/// Reads such a text word by word; everything it finds wrong is a configuration_error that begins with the text.
class spec_reader {
 public:
  /// `what` is what the text is called in errors: "schedule".
  spec_reader(std::string_view what, std::string_view text);

  /// The name, which must be one of `names`; `example` is what errors suggest.
  [[nodiscard]] std::string name(const std::vector<std::string>& names, const std::string& example);
  /// Whether a number follows the name.
  [[nodiscard]] bool has_number() const noexcept { return has_number_; }
  /// That number, which must be there and at least `low` (above it if `open`).
  [[nodiscard]] double number(std::string_view called, double low, bool open);

  /// Whether `key` is given; `value` is what follows it then.
  [[nodiscard]] bool take(const std::string& key, std::string_view& value);
  /// The number that follows `key`, or `fallback`.
  [[nodiscard]] double number_of(const std::string& key, double fallback, double low, bool open);
  /// After all keys were taken: refuses those that are left. `example` is what the error suggests.
  void finish(const std::string& example);

  /// `word` as a number of that range.
  [[nodiscard]] double read(std::string_view called, std::string_view word, double low, bool open) const;
  [[noreturn]] void refuse(const std::string& why, const std::string& suggestion) const;

 private:
  std::string what_;
  std::string text_;
  std::string_view name_;
  std::string_view number_;
  bool has_number_ = false;
  bool numbered_ = false;  // whether the number was asked for
  std::vector<std::pair<std::string, std::string_view>> given_;
  std::vector<std::string> known_;
};

}  // namespace muster::inline v0::detail
