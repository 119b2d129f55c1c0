#include <muster/comm/algorithm_rules.hpp>

#include <algorithm>
#include <optional>

#include <muster/comm/collectives/algo/chooser.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0 {
namespace {

// One item of the list while it is read; knows how to complain about itself.
struct item {
  std::string_view origin;
  std::string_view text;

  [[noreturn]] void refuse(const std::string& why, const std::string& suggestion) const {
    throw configuration_error(std::string(origin) + " cannot have the rule '" + std::string(text) + "' (" + why +
                              "); " + suggestion);
  }

  [[noreturn]] void refuse_name(const std::string& what, std::string_view word,
                                const std::vector<std::string>& known) const {
    std::string list;
    for (const auto& name : known) list += (list.empty() ? "" : ", ") + name;
    const auto meant = closest(word, known);
    refuse("no " + what + " is named '" + std::string(word) + "', known: " + list,
           meant ? "did you mean " + *meant + "?" : "choose one of these");
  }

  [[nodiscard]] algorithm read_algorithm(std::string_view word) const {
    std::vector<std::string> known;
    for (const algorithm how : all_algorithms) {
      if (to_string(how) == word) return how;
      known.emplace_back(to_string(how));
    }
    refuse_name("algorithm", word, known);
  }

  [[nodiscard]] collective read_collective(std::string_view word) const {
    std::vector<std::string> known;
    for (const collective kind : all_collectives) {
      if (to_string(kind) == word) return kind;
      known.emplace_back(to_string(kind));
    }
    refuse_name("collective", word, known);
  }

  [[nodiscard]] std::size_t read_size(std::string_view word) const {
    const auto size = parse_size(word);
    if (!size) refuse("'" + std::string(word) + "' is not a size", "write bytes such as 512, 4k, 1m, 2g, or inf");
    return *size;
  }

  void read_range(std::string_view word, algorithm_rules::rule& made) const {
    const auto dash = word.find('-');
    if (dash == std::string_view::npos) {
      refuse("'" + std::string(word) + "' is not a range of sizes", "write it as low-high, such as 0-4k or 4k-inf");
    }
    made.low = read_size(word.substr(0, dash));
    const auto high = word.substr(dash + 1);
    made.high = high == "inf" ? algorithm_rules::no_limit : read_size(high);
    if (made.low >= made.high) {
      refuse("the range " + std::string(word) + " is empty: low is included, high is not", "give a high above the low");
    }
  }

  [[nodiscard]] algorithm_rules::rule read() const {
    algorithm_rules::rule made;
    if (text.empty()) refuse("it is empty", "write an algorithm, or collective:low-high:algorithm");
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) {
      made.how = read_algorithm(text);
      return made;
    }
    const auto second = text.find(':', colon + 1);
    made.kind = read_collective(text.substr(0, colon));
    if (second != std::string_view::npos) read_range(text.substr(colon + 1, second - colon - 1), made);
    made.how = read_algorithm(text.substr((second == std::string_view::npos ? colon : second) + 1));
    const auto known = algorithms_of(made.kind);
    if (made.how == algorithm::automatic || std::find(known.begin(), known.end(), made.how) != known.end()) return made;
    std::string list;
    for (const algorithm how : known) list += std::string(to_string(how)) + ", ";
    refuse(std::string(to_string(made.kind)) + " has " + list + "and not " + std::string(to_string(made.how)),
           "choose one of these or auto");
  }
};

bool covers(const algorithm_rules::rule& r, collective kind) {
  if (r.kind != collective::none) return r.kind == kind;
  const auto known = algorithms_of(kind);
  return r.how == algorithm::automatic || std::find(known.begin(), known.end(), r.how) != known.end();
}

}  // namespace

algorithm_rules::algorithm_rules(algorithm how) {
  if (how != algorithm::automatic) rules_.push_back({.how = how});
}

algorithm_rules algorithm_rules::parse(std::string_view text, std::string_view origin) {
  algorithm_rules made;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const rule next = item{origin, text.substr(begin, comma - begin)}.read();
    if (next == rule{}) {
      made.rules_.clear();  // "auto" takes back all before it
    } else {
      made.rules_.push_back(next);
    }
    begin = comma + 1;
  }
  return made;
}

std::string algorithm_rules::to_string() const {
  std::string text;
  for (const rule& r : rules_) {
    if (!text.empty()) text += ',';
    text += muster::to_string(r);
  }
  return text.empty() ? "auto" : text;
}

algorithm algorithm_rules::at(collective kind, std::size_t bytes) const noexcept {
  for (auto r = rules_.rbegin(); r != rules_.rend(); ++r) {
    if (covers(*r, kind) && r->low <= bytes && bytes < r->high) return r->how;
  }
  return algorithm::automatic;
}

std::string to_string(const algorithm_rules::rule& r) {
  std::string text;
  if (r.kind != collective::none) text += std::string(to_string(r.kind)) + ':';
  if (r.low != 0 || r.high != algorithm_rules::no_limit) {
    text += format_bytes(r.low) + '-' + (r.high == algorithm_rules::no_limit ? "inf" : format_bytes(r.high)) + ':';
  }
  return text.append(to_string(r.how));
}

std::string format_bytes(std::size_t bytes) {
  std::string unit;
  for (const char letter : {'k', 'm', 'g'}) {
    if (bytes == 0 || bytes % 1024 != 0) break;
    bytes /= 1024;
    unit = letter;
  }
  return std::to_string(bytes) + unit;
}

}  // namespace muster::inline v0
