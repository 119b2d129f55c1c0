#include "link_quality.hpp"

#include <linux/tcp.h>  // its tcp_info has more than that of netinet/tcp.h, and the two cannot be included together
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace muster { inline namespace v0 { namespace detail {

link_quality quality_of(int file) noexcept {
  tcp_info seen{};
  socklen_t length = sizeof seen;
  constexpr std::size_t needed = offsetof(tcp_info, tcpi_delivery_rate) + sizeof seen.tcpi_delivery_rate;
  if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &seen, &length) != 0 || length < needed) return {};
  // What it may have under way in a round trip. Where the ends wait for a processor the rate of delivery is anything,
  // while the system answers for them: this is low only where packets wait for each other on the way.
  const double window = 1.0 * seen.tcpi_snd_cwnd * seen.tcpi_snd_mss;
  const double carries = seen.tcpi_rtt > 0 ? window / (1e-6 * seen.tcpi_rtt) : 0;
  // A rate far above that was measured of a few acknowledgements that came at once.
  const double delivered = std::min(static_cast<double>(seen.tcpi_delivery_rate), 4 * carries);
  return {
      .sent = seen.tcpi_bytes_acked, .bandwidth = std::max(delivered, carries), .latency = 1e-6 * seen.tcpi_min_rtt};
}

}}}  // namespace muster::v0::detail
