#pragma once

#include <muster/ps/ps_settings.hpp>

#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>

namespace muster { inline namespace v0 {
namespace setting {

inline constexpr setting_info servers{
    "servers",
    "N",
    "1",
    "ps: number of servers, the last ranks; the others are workers; colocated: every rank is both",
    detail::value_range(1, 65536),
    false,
    "colocated"};
inline constexpr setting_info standby{
    "standby", "N", "0",
    "ps: number of hot spares after the servers, which serve after a server's death or when the program adds servers",
    detail::value_range(0, 65536)};
inline constexpr setting_info replicas{
    "replicas", "N", "1", "ps: further copies of each range, on different servers: so many servers may die at once",
    detail::value_range(0, 16)};
inline constexpr setting_info consistency{
    "consistency", "NAME", "async",
    "ps: bound of staleness: async, bounded:CLOCKS, bulk; ,drop=UPDATES or ,damp=UPDATES for old pushes"};
inline constexpr setting_info compress{
    "compress", "CODEC", "none",
    "codec of gradients and pushes: none, float16, bfloat16, qsgd8, sign, topk:SHARE, "
    "powersgd:RANK"};

inline void register_settings_of_ps() {
  detail::register_settings({"ps", "the parameter server", {&servers, &consistency, &compress}, {&standby, &replicas}});
}

}  // namespace setting

namespace detail {

extern const plugin ps_plugin;
[[gnu::init_priority(101)]] MUSTER_INLINE const plugin ps_plugin("ps", &setting::register_settings_of_ps);

}  // namespace detail
}}  // namespace muster::v0
