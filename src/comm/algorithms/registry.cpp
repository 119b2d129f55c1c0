#include <muster/comm/algorithms/registry.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <mutex>
#include <span>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/core/error.hpp>
#include <muster/core/spec.hpp>

namespace muster::inline v0 {
namespace {

constexpr std::size_t built_in = std::size(all_algorithms);
constexpr std::size_t most_registered = 8;
constexpr std::size_t kinds = static_cast<std::size_t>(collective::finish) + 1;

// The algorithms of a collective; in place, so that spans of it stay when others are registered.
struct algorithm_list {
  std::array<algorithm, built_in + most_registered> all{};
  std::size_t count = 0;

  constexpr algorithm_list() = default;
  constexpr algorithm_list(std::initializer_list<algorithm> of) {
    for (const algorithm one : of) all[count++] = one;
  }
};

struct {
  std::mutex mutex;
  std::array<std::string, most_registered> names;
  std::array<std::array<algorithm_body, kinds>, most_registered> bodies{};
  std::size_t count = 0;
  std::string told;  // registered_algorithms()
} registry;

using enum algorithm;
constinit std::array<algorithm_list, kinds> lists = {{
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
}};

[[noreturn]] void refuse(std::string_view name, const std::string& why, const char* suggestion) {
  throw configuration_error("algorithm '" + std::string(name) + "' cannot be registered (" + why + "); " + suggestion);
}

}  // namespace

std::span<const algorithm> algorithms_of(collective kind) noexcept {
  const auto& list = lists[static_cast<std::size_t>(kind)];
  return {list.all.data(), list.count};
}

algorithm register_algorithm(collective kind, std::string_view name, algorithm_body body) {
  const std::lock_guard held(registry.mutex);
  const std::vector<std::string> taken(std::begin(detail::algorithm_names), std::end(detail::algorithm_names));
  detail::require_registrable("algorithm", name, taken, body != nullptr);
  if (std::ranges::find(all_collectives, kind) == std::end(all_collectives))
    refuse(name, "there is no such collective", "name one");
  const auto end = registry.names.begin() + static_cast<std::ptrdiff_t>(registry.count);
  const auto index = static_cast<std::size_t>(std::find(registry.names.begin(), end, name) - registry.names.begin());
  if (index == most_registered) refuse(name, "there are 8 already", "register fewer");
  auto& held_by = registry.bodies[index][static_cast<std::size_t>(kind)];
  if (held_by != nullptr)
    refuse(name, std::string(to_string(kind)) + " has an algorithm of that name", "take another one");
  if (index == registry.count) registry.names[registry.count++] = name;
  held_by = body;
  const auto made = static_cast<algorithm>(built_in + index);
  auto& list = lists[static_cast<std::size_t>(kind)];
  list.all[list.count++] = made;
  registry.told += (registry.told.empty() ? "" : " ") + std::string(to_string(kind)) + ":" + std::string(name);
  return made;
}

std::vector<algorithm> known_algorithms() {
  std::vector<algorithm> all(std::begin(all_algorithms), std::end(all_algorithms));
  for (std::size_t i = 0; i < registry.count; ++i) all.push_back(static_cast<algorithm>(built_in + i));
  return all;
}

std::string_view detail::registered_name(std::size_t number) noexcept {
  const std::size_t index = number - built_in;
  return index < registry.count ? std::string_view(registry.names[index]) : std::string_view("unknown algorithm");
}

algorithm_body detail::registered_body(collective kind, algorithm how) noexcept {
  const std::size_t index = static_cast<std::size_t>(how) - built_in;  // of the library's: far too large
  return index < most_registered ? registry.bodies[index][static_cast<std::size_t>(kind)] : nullptr;
}

std::string detail::registered_algorithms() { return registry.told; }

}  // namespace muster::inline v0
