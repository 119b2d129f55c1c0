#include "link_quality.hpp"

#include <linux/tcp.h>  // its tcp_info has more than that of netinet/tcp.h, and the two cannot be included together
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace muster::inline v0::detail {

link_quality quality_of(int file) noexcept {
  tcp_info seen{};
  socklen_t length = sizeof seen;
  constexpr std::size_t needed = offsetof(tcp_info, tcpi_delivery_rate) + sizeof seen.tcpi_delivery_rate;
  if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &seen, &length) != 0 || length < needed) return {};
  return {.sent = seen.tcpi_bytes_acked,
          .bandwidth = static_cast<double>(seen.tcpi_delivery_rate),
          .latency = 1e-6 * seen.tcpi_min_rtt};
}

}  // namespace muster::inline v0::detail
