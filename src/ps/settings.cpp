#include <muster/ps/settings.hpp>

namespace muster::inline v0::setting {

constexpr setting_info servers{
    "servers",
    "N",
    "1",
    "ps: how many ranks serve, the last ones; the others work; colocated: every rank does both",
    detail::from(1, 65536),
    false,
    "colocated"};
constexpr setting_info standby{
    "standby", "N", "0",
    "ps: how many ranks behind them stand by, to serve when one has died or the program wants more",
    detail::from(0, 65536)};
constexpr setting_info replicas{
    "replicas", "N", "1",
    "ps: copies of all parameters beyond the first, where there are as many servers: so many may die at once",
    detail::from(0, 16)};
constexpr setting_info consistency{
    "consistency", "NAME", "async",
    "ps: how far workers may be apart: async, bounded:CLOCKS, bulk; ,drop=UPDATES or ,damp=UPDATES behind it"};
constexpr setting_info compress{
    "compress", "CODEC", "none",
    "of gradients: none, float16, bfloat16, qsgd8, sign, topk:SHARE, randomk:SHARE, blockk:SHARE, powersgd:RANK"};

extern "C" {
bool muster_settings_of_ps = detail::register_settings(
    {"ps", "the parameter server", {&servers, &consistency, &compress}, {&standby, &replicas}});
}

}  // namespace muster::inline v0::setting
