// One service out of replicas, for requests that are too large for any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>

namespace served {

struct gateway_options {
  std::string listen;
  std::vector<std::string> replicas;  ///< HOST:PORT
  std::size_t max_batch = 32;         ///< rows of a request to a replica
  std::size_t max_body = 0;           ///< bytes of a request to a replica, and of an answer
  muster::seconds replica_timeout{10};
};

/// Calls `listens` with the port, and serves until SIGTERM and until what has come is answered: POST .../infer of v2
/// with binary tensors is split by rows among the replicas as its bytes come; GET is passed on to one of them. Throws
/// muster::configuration_error for an address that cannot be used.
void run_gateway(const gateway_options& options, const std::function<void(std::uint16_t)>& listens);

}  // namespace served
