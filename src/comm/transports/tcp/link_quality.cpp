#include "link_quality.hpp"

// this tcp_info has more fields than in netinet/tcp.h; the two headers cannot be included together
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace muster { inline namespace v0 { namespace detail {

link_quality quality_of(int file) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  constexpr std::size_t needed = offsetof(tcp_info, tcpi_delivery_rate) + sizeof info.tcpi_delivery_rate;
  if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || length < needed) return {};
  // The bytes that the connection may have in flight in a round trip. The measured delivery rate is unreliable if the
  // processes at the ends wait for a processor, but the system acknowledges for them. So this rate is low only if
  // packets queue in the network.
  const double window = 1.0 * info.tcpi_snd_cwnd * info.tcpi_snd_mss;
  const double window_rate = info.tcpi_rtt > 0 ? window / (1e-6 * info.tcpi_rtt) : 0;
  // A rate far above the window rate results from a few acknowledgements that arrived together.
  const double delivery_rate = std::min(static_cast<double>(info.tcpi_delivery_rate), 4 * window_rate);
  return {.sent = info.tcpi_bytes_acked,
          .bandwidth = std::max(delivery_rate, window_rate),
          .latency = 1e-6 * info.tcpi_min_rtt};
}

}}}  // namespace muster::v0::detail
