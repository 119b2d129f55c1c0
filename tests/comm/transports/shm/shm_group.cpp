#include <muster/comm/transports/shm/shm_group.hpp>

#include "../../ranks.hpp"
#include "catch.hpp"

TEST_CASE("a rank that has announced its sleep is woken by each way to wake it, and no other") {
  namespace shm = muster::detail;
  const auto hosts = test::make_hosts(3);
  std::vector<std::uint64_t> slots;
  for (const auto& host : hosts) slots.push_back(shm::shm_group::allocate_slot(host->own(), 3));
  std::vector<std::unique_ptr<shm::shm_group>> groups;
  for (int rank = 0; rank < 3; ++rank)
    groups.push_back(std::make_unique<shm::shm_group>(hosts[static_cast<std::size_t>(rank)], std::vector<int>{0, 1, 2},
                                                      rank, slots));
  const auto asleep = [&](std::size_t rank) { return groups[rank]->mine().asleep.load() != 0; };
  const auto announce = [&] {
    for (auto& group : groups) group->wait(muster::deadline_after(muster::seconds(30)));
    REQUIRE((asleep(0) && asleep(1) && asleep(2)));
  };
  announce();
  groups[0]->wake(2);
  CHECK((asleep(0) && asleep(1) && !asleep(2)));
  groups[1]->wake_all();
  CHECK((!asleep(0) && asleep(1) && !asleep(2)));
  groups[0]->wake(1);
  announce();
  groups[2]->wake_all();
  CHECK((!asleep(0) && !asleep(1) && asleep(2)));
}
