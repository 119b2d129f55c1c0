// A command line that owns its words, in the form of main's arguments.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace test {

struct command_line {
  explicit command_line(std::vector<std::string> list) : words(std::move(list)) {
    for (auto& word : words) pointers.push_back(word.data());
    argc = static_cast<int>(words.size());
    pointers.push_back(nullptr);
  }
  command_line(const command_line&) = delete;
  command_line& operator=(const command_line&) = delete;

  [[nodiscard]] char** argv() { return pointers.data(); }
  /// Returns the words that remain after flags were removed.
  [[nodiscard]] std::vector<std::string> rest() const { return {pointers.data(), pointers.data() + argc}; }

  std::vector<std::string> words;
  std::vector<char*> pointers;
  int argc = 0;
};

}  // namespace test
