#pragma once

#include <muster/data/records/shards.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

[[noreturn]] inline void refuse(std::string_view rule, const std::string& reason, const std::string& suggestion) {
  throw configuration_error("records cannot be divided into shards by '" + std::string(rule) + "' (" + reason + "); " +
                            suggestion);
}

inline std::vector<double> numbers_of(std::string_view list, std::string_view rule) {
  std::vector<double> numbers;
  for (const auto word : muster::detail::split(list, ',')) {
    const auto number = parse_number<double>(word);
    if (!number || !(*number >= 0) || !std::isfinite(*number))
      refuse(rule, "'" + std::string(word) + "' is not a weight", "write such as weights:2,1,1");
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace detail

MUSTER_INLINE shard_rule::shard_rule(std::string_view rule, std::uint32_t shards, const record_schema& schema,
                                     std::uint64_t records, const detail::table_names& columns)
    : shards_(shards) {
  constexpr std::string_view weights = "weights:", hash = "hash:";
  if (rule.starts_with(weights)) {
    const std::vector<double> numbers = detail::numbers_of(rule.substr(weights.size()), rule);
    if (shards != 0 && numbers.size() != shards) {
      detail::refuse(rule,
                     std::to_string(numbers.size()) + " weights were given for " + std::to_string(shards) + " shards",
                     "give every shard a weight");
    }
    if (std::accumulate(numbers.begin(), numbers.end(), 0.0) <= 0)
      detail::refuse(rule, "the sum of the weights is 0", "give at least one weight above 0");
    use_weights(numbers, records);
    return;
  }
  if (shards == 0) detail::refuse(rule, "there are no shards", "give the number of shards");
  if (rule == "range")
    use_weights(std::vector<double>(shards, 1.0), records);
  else if (rule.starts_with(hash))
    use_key(rule.substr(hash.size()), schema, columns);
  else
    detail::refuse(rule, "the rule is unknown", "write range, hash:KEY or weights:2,1,1");
}

MUSTER_INLINE void shard_rule::use_weights(const std::vector<double>& weights, std::uint64_t records) {
  shards_ = static_cast<std::uint32_t>(weights.size());
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double reached = 0;
  for (const double weight : weights) {
    reached += weight;
    ends_.push_back(static_cast<std::uint64_t>(std::llround(static_cast<double>(records) * (reached / all))));
  }
  ends_.back() = std::max(ends_.back(), records);
}

MUSTER_INLINE void shard_rule::use_key(std::string_view key, const record_schema& schema,
                                       const detail::table_names& columns) {
  if (key == "record") return;
  const auto column = std::ranges::find(columns.features, key);
  if (column != columns.features.end()) {
    offset_ = sizeof(float) * static_cast<std::size_t>(column - columns.features.begin());
    bytes_ = sizeof(float);
    return;
  }
  std::string known_keys = "record";
  for (std::size_t k = 0; k < schema.labels.size(); ++k) {
    if (schema.labels[k] == key || (!columns.label.empty() && columns.label == key)) label_ = k;
    known_keys += ", " + schema.labels[k];
  }
  if (label_ < schema.labels.size()) return;
  std::size_t at = 0;
  for (const auto& field : schema.fields) {
    const std::size_t size = field.bytes();
    if (field.name == key) {
      offset_ = at;
      bytes_ = size;
      return;
    }
    at += size;
    known_keys += ", " + field.name;
  }
  constexpr std::size_t most = 8;
  for (const std::string& name : std::span(columns.features).first(std::min(most, columns.features.size())))
    known_keys += ", " + name;
  detail::refuse("hash:" + std::string(key), "records have no such key", "use one of " + known_keys);
}

MUSTER_INLINE std::uint32_t shard_rule::operator()(sample_id id, std::span<const std::byte> record,
                                                   std::span<const float> labels) const noexcept {
  if (!ends_.empty()) {
    const auto last = std::ptrdiff_t{shards_} - 1;
    return static_cast<std::uint32_t>(std::upper_bound(ends_.begin(), ends_.begin() + last, id) - ends_.begin());
  }
  const auto key = label_ < labels.size() ? std::as_bytes(labels.subspan(label_, 1))
                                          : record.subspan(offset_, std::min(bytes_, record.size() - offset_));
  const std::uint64_t hash = digest().add(key).value();
  std::uint32_t chosen = 0;
  std::uint64_t highest = 0;
  for (std::uint32_t shard = 0; shard < shards_; ++shard) {
    const std::uint64_t score = mix(hash ^ mix(shard + 1));
    if (score < highest) continue;
    highest = score;
    chosen = shard;
  }
  return chosen;
}

}}}  // namespace muster::v0::data
