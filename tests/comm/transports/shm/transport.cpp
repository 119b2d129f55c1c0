#include "comm/transports/shm/transport.hpp"

#include <array>
#include <iostream>
#include <thread>

#include "../../ranks.hpp"
#include "catch.hpp"

namespace {

namespace shm = muster::detail;

/// Whether two ranks agree that they may read each other's memory, where rank 1's probe lies at `probe` (null: where it
/// is).
bool may_pull(const std::byte* probe) {
  const auto hosts = test::make_hosts(2);
  std::vector<std::uint64_t> slots;
  for (const auto& host : hosts) slots.push_back(shm::shm_group::allocate_slot(host->own(), 2));
  auto& head = *reinterpret_cast<shm::slot_head*>(hosts[1]->own().memory().at(slots[1]));
  if (probe != nullptr) head.probe = reinterpret_cast<std::uint64_t>(probe);
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      shm::shm_transport made(hosts[static_cast<std::size_t>(rank)], {0, 1}, rank, slots);
      made.agree(shm::cma_wish::where_faster, muster::deadline_after(muster::seconds(60)));
    });
  }
  for (auto& one : ranks) one.join();
  CHECK(hosts[0]->agreed().may_pull == hosts[1]->agreed().may_pull);
  return hosts[0]->agreed().may_pull;
}

}  // namespace

// As in containers, whose first processes all have the number 1: a rank there read itself.
TEST_CASE("a process that has other bytes where a rank's probe lies is not taken for that rank") {
  if (!may_pull(nullptr)) {
    std::cout << "SKIPPED: the system lets no process read another\n";
    return;
  }
  const std::array<std::byte, 4096> others{};
  CHECK_FALSE(may_pull(others.data()));
}
