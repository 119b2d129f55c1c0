#pragma once

#include <muster/comm/bootstrap/endpoints.hpp>

#include <future>

#include <muster/comm/bootstrap/transport_choice.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/comm/transports/shm/connect_shm.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/random_bytes.hpp>

namespace muster { inline namespace v0 { namespace detail {
using transport_list = std::vector<std::unique_ptr<transport>>;

// Connects ranks that are threads: rank 0 creates the hub that all use.
inline transport_list over_threads(group& ranks, int rank_count) {
  const auto hub =
      construct_on_rank_zero(ranks, [&] { return std::make_shared<thread_hub>(rank_count * ranks.size()); });
  transport_list endpoints;
  for (int k = 0; k < rank_count; ++k) {
    endpoints.push_back(std::make_unique<thread_transport>(hub, k * ranks.size() + ranks.rank()));
  }
  return endpoints;
}

// Connects ranks over shared memory. All endpoints of a host use one rendezvous, which requires one thread per
// endpoint.
inline transport_list over_memory(const settings& configuration, group& ranks, int rank_count) {
  launch_env launch;
  launch.start_name = "ends";
  const std::string suffix = "/ends-" + broadcast_string(ranks, random_token().substr(0, 16), 0);
  return connect_at_once(rank_count, [&](int k) {
    return connect_host(configuration, launch, k * ranks.size() + ranks.rank(), rank_count * ranks.size(), suffix);
  });
}

MUSTER_INLINE std::vector<std::unique_ptr<transport>> connect_at_once(
    int rank_count, const std::function<std::unique_ptr<transport>(int number)>& connect) {
  std::vector<std::future<std::unique_ptr<transport>>> futures;
  for (int k = 0; k < rank_count; ++k) futures.push_back(std::async(std::launch::async, connect, k));
  transport_list endpoints;
  for (auto& future : futures) endpoints.push_back(future.get());
  return endpoints;
}

MUSTER_INLINE std::vector<std::unique_ptr<transport>> connect_endpoints(const settings& configuration, group& ranks,
                                                                        int rank_count) {
  const std::string name(ranks.abilities().name);
  if (name == "threads" || name == "self") return over_threads(ranks, rank_count);
  if (name == "shm") return over_memory(configuration, ranks, rank_count);
  const std::string mesh_name = name == "hierarchical" ? "tcp" : name;
  if (const auto* const found = find_registered(mesh_name); found != nullptr && found->connect_endpoints != nullptr)
    return found->connect_endpoints(configuration, ranks, rank_count);
  throw configuration_error("transport " + name +
                            " cannot give a process several endpoints (it has one rank a process); use shm or tcp");
}

}}}  // namespace muster::v0::detail
