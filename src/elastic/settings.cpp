#include <muster/elastic/settings.hpp>

namespace muster::inline v0::setting {

constexpr setting_info min_ranks{"min-ranks", "N", "1", "elastic: with fewer ranks the job waits for more",
                                 detail::from(1, most_ranks)};
constexpr setting_info max_ranks{"max-ranks", "N", "4096", "elastic: more are not taken in",
                                 detail::from(1, most_ranks)};
constexpr setting_info slow_ranks{
    "slow-ranks", "WHAT", "report",
    "elastic: ranks that take much longer for their part of a step: ignore, report, or remove them"};
constexpr setting_info slow_factor{"slow-factor",
                                   "K",
                                   "3",
                                   "elastic: slow is who takes longer than K times what the median rank takes",
                                   detail::from(1, 1000000),
                                   true};
constexpr setting_info slow_steps{"slow-steps", "N", "20", "elastic: and does so in each of N steps",
                                  detail::from(1, 100000)};
constexpr setting_info mode{
    "mode", "NAME", "allreduce",
    "what ranks exchange in training: allreduce (gradients), allreduce-weights, local-sgd[:STEPS], "
    "gossip[:ring|:torus|:exponential], ps (a parameter server)"};

extern "C" {
bool muster_settings_of_elastic = detail::register_settings(
    {"elastic", "elastic jobs", {&mode, &min_ranks, &max_ranks}, {&slow_ranks, &slow_factor, &slow_steps}});
}

}  // namespace muster::inline v0::setting
