#pragma once

#include <muster/comm/transports/tcp/link_quality.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The first fields of Linux's `struct tcp_info` (linux/tcp.h). The C library's struct of that name ends before the
/// fields that are needed here, and linux/tcp.h cannot be included beside netinet/tcp.h.
struct linux_tcp_info {
  std::uint8_t states[8];
  std::uint32_t rto, ato, snd_mss, rcv_mss, unacked, sacked, lost, retrans, fackets;
  std::uint32_t last_data_sent, last_ack_sent, last_data_recv, last_ack_recv, pmtu, rcv_ssthresh, rtt, rttvar;
  std::uint32_t snd_ssthresh, snd_cwnd, advmss, reordering, rcv_rtt, rcv_space, total_retrans;
  std::uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
  std::uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
  std::uint64_t delivery_rate;
};
static_assert(offsetof(linux_tcp_info, delivery_rate) == 160);

MUSTER_INLINE link_quality quality_of(int socket) noexcept {
  linux_tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || length < sizeof info) return {};
  // The bytes that the connection may have in flight in a round trip. The measured delivery rate is unreliable if the
  // processes at the ends wait for a processor, but the system acknowledges for them. So this rate is low only if
  // packets queue in the network.
  const double window = 1.0 * info.snd_cwnd * info.snd_mss;
  const double window_rate = info.rtt > 0 ? window / (1e-6 * info.rtt) : 0;
  // A rate far above the window rate results from a few acknowledgements that arrived together.
  const double delivery_rate = std::min(static_cast<double>(info.delivery_rate), 4 * window_rate);
  return {.sent = info.bytes_acked, .bandwidth = std::max(delivery_rate, window_rate), .latency = 1e-6 * info.min_rtt};
}

}}}  // namespace muster::v0::detail
