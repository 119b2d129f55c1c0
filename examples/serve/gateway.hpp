// A gateway that combines replicas into one service, for requests that are too large for a single replica.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>

namespace served {

/// The addresses and limits of a gateway.
struct gateway_options {
  std::string listen;
  std::vector<std::string> replicas;  ///< HOST:PORT for each replica
  std::size_t max_batch = 32;         ///< largest number of rows in a request to a replica
  std::size_t max_body = 0;           ///< largest number of bytes in a request to a replica, and in a reply
  muster::seconds replica_timeout{10};
};

/// Runs a gateway until SIGTERM or SIGINT, and until all pending requests are answered. Calls `on_listening` with the
/// port. The gateway splits a POST to .../infer of v2 with binary tensors by rows among the replicas, while it receives
/// the request. It forwards a GET to a single replica. Throws muster::configuration_error for an unusable address.
void run_gateway(const gateway_options& options, const std::function<void(std::uint16_t)>& on_listening);

}  // namespace served
