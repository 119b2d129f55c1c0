#include "connect.hpp"

#include <charconv>

#include <muster/comm/algorithms/recursive_doubling.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include "../shm/connect.hpp"
#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

// A collective before there is a group.
void run(transport& transport, executor& f, task body, seconds timeout) {
  const auto until = deadline_after(timeout);
  f.start(body.handle());
  while (!body.finished()) {
    if (f.advance()) continue;
    control_message word;
    if (transport.poll(word) && word.what != control_message::kind::position)
      throw peer_failure({word.origin}, word.text);
    if (clock::now() >= until) {
      throw timeout_error("telling hosts", {},
                          "the ranks did not exchange the names of their hosts within " +
                              std::to_string(timeout.count()) +
                              " s (some did not start, or use another transport); look at their logs");
    }
    transport.pause(until);
  }
  if (body.failure()) std::rethrow_exception(body.failure());
}

std::vector<std::uint64_t> hosts_of_all(transport& transport, std::uint64_t mine, seconds timeout) {
  std::vector<std::uint64_t> hosts(static_cast<std::size_t>(transport.size()), 0);
  hosts[static_cast<std::size_t>(transport.rank())] = mine;
  frame_pool pool;
  std::vector<buffer<std::byte>> scratch;
  const collective_signature none;  // no collective of the group that is to be
  executor f(transport, pool, scratch, none);
  const blocks parts{reinterpret_cast<std::byte*>(hosts.data()), hosts.size(), sizeof hosts[0], transport.size()};
  run(transport, f, recursive_doubling_allgather(f, parts), timeout);
  return hosts;
}

}  // namespace

std::unique_ptr<transport> connect_hierarchical(std::unique_ptr<transport> between, const settings& configuration,
                                                const launch_env& launch) {
  const seconds timeout(configuration.positive(setting::timeout));
  const std::uint64_t mine = digest().add(host_identity(configuration)).value();
  host_map hosts(hosts_of_all(*between, mine, timeout));
  const int rank = between->rank();
  std::unique_ptr<shm_transport> within;
  if (const auto here = static_cast<int>(hosts.neighbours(rank).size()); here > 1) {
    char name[17] = "/";
    const auto end = std::to_chars(name + 1, name + sizeof name, mine, 16).ptr;
    within = connect_host(configuration, launch, hosts.place_of[static_cast<std::size_t>(rank)], here,
                          {name, static_cast<std::size_t>(end - name)});
  }
  return std::make_unique<hierarchical_transport>(std::move(between), std::move(within), std::move(hosts));
}

}  // namespace muster::inline v0::detail
