#include "transport.hpp"

namespace muster::inline v0::detail {

// Every member knows the other members, and its frames carry the id: there is nothing to agree on.
std::unique_ptr<transport> tcp_transport::subgroup(const subgroup_call& some) {
  std::vector<int> of_world;
  for (const int member : some.members) of_world.push_back(group_.peer(member));
  return std::make_unique<tcp_transport>(mesh_, std::move(of_world), some.place_of(rank()), some.id);
}

}  // namespace muster::inline v0::detail
