#pragma once

#include <muster/comm/algorithms/algorithm_rules.hpp>

#include <algorithm>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 {
namespace detail {

template <class Named, class All>
std::vector<std::pair<std::string, Named>> named(const All& all) {
  std::vector<std::pair<std::string, Named>> list;
  for (const Named each : all) list.emplace_back(to_string(each), each);
  return list;
}

inline std::size_t read_size(const spec_reader& entry, std::string_view word) {
  const auto size = parse_size(word);
  if (!size) entry.refuse("'" + std::string(word) + "' is not a size", "write bytes such as 512, 4k, 1m, 2g, or inf");
  return *size;
}

inline void read_range(const spec_reader& entry, std::string_view word, algorithm_rules::rule& rule) {
  const auto dash = word.find('-');
  if (dash == std::string_view::npos)
    entry.refuse("'" + std::string(word) + "' is not a range of sizes", "write it as low-high, such as 0-4k or 4k-inf");
  rule.low = read_size(entry, word.substr(0, dash));
  const auto high = word.substr(dash + 1);
  rule.high = high == "inf" ? algorithm_rules::no_limit : read_size(entry, high);
  if (rule.low >= rule.high) {
    entry.refuse("the range " + std::string(word) + " is empty: low is included, high is not",
                 "give a high above the low");
  }
}

// Reads an item of the list: an algorithm, or COLLECTIVE:ALGORITHM, or COLLECTIVE:LOW-HIGH:ALGORITHM.
inline algorithm_rules::rule read_rule(spec_reader entry) {
  algorithm_rules::rule result;
  if (entry.text().empty()) entry.refuse("it is empty", "write an algorithm, or collective:low-high:algorithm");
  const auto algorithms = named<algorithm>(known_algorithms());
  if (!entry.has_value()) {
    result.algorithm = entry.choose("algorithm", entry.name(), algorithms);
    return result;
  }
  result.kind = entry.choose("collective", entry.name(), named<collective>(all_collectives));
  const std::string rest = entry.value("algorithm");
  const auto colon = rest.find(':');
  if (colon != std::string::npos) read_range(entry, std::string_view(rest).substr(0, colon), result);
  result.algorithm =
      entry.choose("algorithm", std::string_view(rest).substr(colon == std::string::npos ? 0 : colon + 1), algorithms);
  const auto available = algorithms_of(result.kind);
  if (result.algorithm == algorithm::automatic ||
      std::find(available.begin(), available.end(), result.algorithm) != available.end())
    return result;
  std::string list;
  for (const algorithm name : available) list += std::string(to_string(name)) + ", ";
  entry.refuse(
      std::string(to_string(result.kind)) + " has " + list + "and not " + std::string(to_string(result.algorithm)),
      "choose a listed algorithm or auto");
}

inline bool covers(const algorithm_rules::rule& r, collective kind) {
  if (r.kind != collective::none) return r.kind == kind;
  const auto available = algorithms_of(kind);
  return r.algorithm == algorithm::automatic ||
         std::find(available.begin(), available.end(), r.algorithm) != available.end();
}

}  // namespace detail

MUSTER_INLINE algorithm_rules::algorithm_rules(algorithm name) {
  if (name != algorithm::automatic) rules_.push_back({.algorithm = name});
}

MUSTER_INLINE algorithm_rules algorithm_rules::parse(std::string_view text, std::string_view origin) {
  algorithm_rules list;
  for (const auto word : detail::split(text, ',')) {
    const rule next = detail::read_rule({origin, word});
    if (next == rule{}) {
      list.rules_.clear();  // "auto" removes all earlier rules
    } else {
      list.rules_.push_back(next);
    }
  }
  return list;
}

MUSTER_INLINE std::string algorithm_rules::to_string() const {
  if (rules_.empty()) return "auto";
  return detail::joined(rules_, ",", [](const rule& entry) { return muster::to_string(entry); });
}

MUSTER_INLINE algorithm algorithm_rules::algorithm_for(collective kind, std::size_t bytes) const noexcept {
  for (auto r = rules_.rbegin(); r != rules_.rend(); ++r) {
    if (detail::covers(*r, kind) && r->low <= bytes && bytes < r->high) return r->algorithm;
  }
  return algorithm::automatic;
}

MUSTER_INLINE std::string to_string(const algorithm_rules::rule& r) {
  std::string text;
  if (r.kind != collective::none) text += std::string(to_string(r.kind)) + ':';
  if (r.low != 0 || r.high != algorithm_rules::no_limit) {
    text += format_bytes(r.low) + '-' + (r.high == algorithm_rules::no_limit ? "inf" : format_bytes(r.high)) + ':';
  }
  return text.append(to_string(r.algorithm));
}

MUSTER_INLINE std::string format_bytes(std::size_t bytes) {
  std::string unit;
  for (const char letter : {'k', 'm', 'g'}) {
    if (bytes == 0 || bytes % 1024 != 0) break;
    bytes /= 1024;
    unit = letter;
  }
  return std::to_string(bytes) + unit;
}

}}  // namespace muster::v0
