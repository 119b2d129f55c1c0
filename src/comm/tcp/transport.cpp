#include "transport.hpp"

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

// Every member knows who is in it, and its frames carry the id: there is nothing to agree on.
std::unique_ptr<transport> tcp_transport::subgroup(const subgroup_call& some) {
  std::vector<int> of_world;
  int mine = -1;
  for (const int member : some.members) {
    if (member == rank()) mine = static_cast<int>(of_world.size());
    of_world.push_back(group_.world_rank(member));
  }
  if (mine < 0) {
    throw configuration_error("rank " + std::to_string(rank()) +
                              " is not a member of the group it asks for (programming error)");
  }
  return std::make_unique<tcp_transport>(mesh_, std::move(of_world), mine, some.id);
}

}  // namespace muster::inline v0::detail
