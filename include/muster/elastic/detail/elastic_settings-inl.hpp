#pragma once

#include <muster/elastic/elastic_settings.hpp>

#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>

namespace muster { inline namespace v0 {
namespace setting {

inline constexpr setting_info min_ranks{"min-ranks", "N", "1",
                                        "elastic: with fewer ranks the job waits until more join",
                                        detail::value_range(1, most_ranks)};
inline constexpr setting_info max_ranks{"max-ranks", "N", "4096",
                                        "elastic: most ranks of the job; more are not admitted",
                                        detail::value_range(1, most_ranks)};
inline constexpr setting_info slow_ranks{
    "slow-ranks", "WHAT", "report",
    "elastic: stragglers, ranks that take much longer for their part of a step: ignore, report, or remove them"};
inline constexpr setting_info slow_factor{"slow-factor",
                                          "K",
                                          "3",
                                          "elastic: a straggler takes longer than K times the median of the ranks",
                                          detail::value_range(1, 1000000),
                                          true};
inline constexpr setting_info slow_steps{"slow-steps", "N", "15", "elastic: in each of N successive steps",
                                         detail::value_range(1, 100000)};
inline constexpr setting_info mode{
    "mode", "NAME", "allreduce",
    "data that ranks exchange in training: allreduce (gradients), allreduce-weights, local-sgd[:STEPS], "
    "gossip[:ring|:torus|:exponential], ps (a parameter server)"};

inline void register_settings_of_elastic() {
  detail::register_settings(
      {"elastic", "elastic jobs", {&mode, &min_ranks, &max_ranks}, {&slow_ranks, &slow_factor, &slow_steps}});
}

}  // namespace setting

namespace detail {

extern const plugin elastic_plugin;
[[gnu::init_priority(101)]] MUSTER_INLINE const plugin elastic_plugin("elastic",
                                                                      &setting::register_settings_of_elastic);

}  // namespace detail
}}  // namespace muster::v0
