#include <muster/ps/ps_settings.hpp>

namespace muster { inline namespace v0 { namespace setting {

constexpr setting_info servers{
    "servers",
    "N",
    "1",
    "ps: number of servers, the last ranks; the others are workers; colocated: every rank is both",
    detail::value_range(1, 65536),
    false,
    "colocated"};
constexpr setting_info standby{
    "standby", "N", "0",
    "ps: number of hot spares after the servers, which serve after a server's death or when the program adds servers",
    detail::value_range(0, 65536)};
constexpr setting_info replicas{
    "replicas", "N", "1", "ps: further copies of each range, on different servers: so many servers may die at once",
    detail::value_range(0, 16)};
constexpr setting_info consistency{
    "consistency", "NAME", "async",
    "ps: bound of staleness: async, bounded:CLOCKS, bulk; ,drop=UPDATES or ,damp=UPDATES for old pushes"};
constexpr setting_info compress{"compress", "CODEC", "none",
                                "codec of gradients and pushes: none, float16, bfloat16, qsgd8, sign, topk:SHARE, "
                                "randomk:SHARE, blockk:SHARE, powersgd:RANK"};

extern "C" {
bool muster_register_settings_of_ps() noexcept {
  static const bool is_done = detail::register_settings(
      {"ps", "the parameter server", {&servers, &consistency, &compress}, {&standby, &replicas}});
  return is_done;
}
bool muster_settings_of_ps = muster_register_settings_of_ps();
}

}}}  // namespace muster::v0::setting
