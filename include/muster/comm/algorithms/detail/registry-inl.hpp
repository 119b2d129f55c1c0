#pragma once

#include <muster/comm/algorithms/registry.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/spec.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline constexpr std::size_t built_in = std::size(all_algorithms);
inline constexpr std::size_t most_registered = 8;

struct registry {
  using enum algorithm;

  std::array<std::vector<algorithm>, static_cast<std::size_t>(collective::exclusive_scan) + 1> algorithms = {{
      {},
      {tree, chain, native},                                               // broadcast
      {tree, native},                                                      // reduce
      {recursive_doubling, halving_doubling, ring, direct, tree, native},  // allreduce
      {recursive_doubling, ring, native},                                  // allgather
      {direct, ring, native},                                              // reduce_scatter
      {tree, direct, native},                                              // gather
      {tree, direct, native},                                              // scatter
      {direct, native},                                                    // all_to_all
      {recursive_doubling, native},                                        // barrier
      {recursive_doubling},                                                // finish
      {recursive_doubling},                                                // scan
      {recursive_doubling},                                                // exclusive_scan
  }};
  std::deque<std::string> names;  // names of the registered algorithms; a deque, so that views of the names stay valid
  std::map<std::pair<collective, algorithm>, algorithm_body> bodies;
  std::string description;  // the text of `registered_algorithms`
};

inline registry& algorithm_registry() {
  static registry instance;
  return instance;
}

[[noreturn]] inline void refuse(std::string_view name, const std::string& reason, const char* suggestion) {
  throw configuration_error("algorithm '" + std::string(name) + "' cannot be registered (" + reason + "); " +
                            suggestion);
}

}  // namespace detail

MUSTER_INLINE std::span<const algorithm> algorithms_of(collective kind) noexcept {
  return detail::algorithm_registry().algorithms[static_cast<std::size_t>(kind)];
}

MUSTER_INLINE algorithm register_algorithm(collective kind, std::string_view name, algorithm_body body) {
  auto& [algorithms, names, bodies, description] = detail::algorithm_registry();
  const std::vector<std::string> reserved(std::begin(detail::algorithm_names), std::end(detail::algorithm_names));
  detail::require_registrable("algorithm", name, reserved, body != nullptr);
  if (std::ranges::find(all_collectives, kind) == std::end(all_collectives))
    detail::refuse(name, "there is no such collective", "give a collective such as allreduce");
  const auto index = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  if (index == detail::most_registered) detail::refuse(name, "there are 8 already", "register fewer");
  const auto number = static_cast<algorithm>(detail::built_in + index);
  if (!bodies.emplace(std::pair(kind, number), body).second)
    detail::refuse(name, std::string(to_string(kind)) + " has an algorithm with that name", "choose another name");
  if (index == names.size()) names.emplace_back(name);
  algorithms[static_cast<std::size_t>(kind)].push_back(number);
  description += (description.empty() ? "" : " ") + std::string(to_string(kind)) + ":" + std::string(name);
  return number;
}

MUSTER_INLINE std::vector<algorithm> known_algorithms() {
  std::vector<algorithm> all(std::begin(all_algorithms), std::end(all_algorithms));
  for (std::size_t i = 0; i < detail::algorithm_registry().names.size(); ++i)
    all.push_back(static_cast<algorithm>(detail::built_in + i));
  return all;
}

MUSTER_INLINE std::string_view detail::registered_name(std::size_t index) noexcept {
  const auto& names = detail::algorithm_registry().names;
  return index - detail::built_in < names.size() ? std::string_view(names[index - detail::built_in])
                                                 : "unknown algorithm";
}

MUSTER_INLINE algorithm_body detail::registered_body(collective kind, algorithm name) noexcept {
  if (static_cast<std::size_t>(name) < detail::built_in) return nullptr;
  const auto found = detail::algorithm_registry().bodies.find({kind, name});
  return found == detail::algorithm_registry().bodies.end() ? nullptr : found->second;
}

MUSTER_INLINE std::string detail::registered_algorithms() { return detail::algorithm_registry().description; }

}}  // namespace muster::v0
