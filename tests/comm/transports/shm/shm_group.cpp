#include <muster/comm/transports/shm/shm_group.hpp>

#include <array>
#include <set>
#include <stdexcept>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>

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

// More ranks than marks of arrivals: messages that have no receive yet, and several senders with one mark.
TEST_CASE("in a large group every message arrives, from any source and from each, whenever its receive is posted") {
  constexpr int ranks = 70;
  constexpr int messages = 6;
  test::run_ranks(test::fabric::shm, ranks, [](muster::group& world) {
    auto& transport = world.transport();
    const auto deadline = muster::deadline_after(muster::seconds(120));
    const auto finish = [&](muster::request& req) {
      while (!transport.test(req)) {
        if (muster::clock::now() > deadline) throw std::runtime_error("a message does not arrive");
        transport.pause(muster::deadline_after(muster::seconds(0.01)));
      }
    };
    std::vector<std::array<int, 2>> values(2 * messages);
    std::vector<muster::request> requests(4 * messages);
    const auto start = [&](int index, int peer, std::uint32_t tag, std::array<int, 2>& value) -> muster::request& {
      auto& req = requests[static_cast<std::size_t>(index)];
      req.data = reinterpret_cast<std::byte*>(value.data());
      req.bytes = sizeof value;
      req.peer = peer;
      req.tag = tag;
      return req;
    };
    // Message i goes to the rank 11 * i + 1 further: tag 5 is received from any source, tag 6 from each sender.
    for (int i = 0; i < messages; ++i) {
      values[static_cast<std::size_t>(i)] = {world.rank(), i};
      const int peer = (world.rank() + 11 * i + 1) % ranks;
      transport.send(start(2 * i, peer, 5, values[static_cast<std::size_t>(i)]));
      transport.send(start(2 * i + 1, peer, 6, values[static_cast<std::size_t>(i)]));
    }
    muster::barrier(world);
    std::vector<std::array<int, 2>> received(2 * messages);
    for (int i = messages - 1; i >= 0; --i) {
      const int peer = (world.rank() + ranks * messages - 11 * i - 1) % ranks;
      auto& each = received[static_cast<std::size_t>(i)];
      auto& req = start(2 * messages + i, peer, 6, each);
      transport.receive(req);
      finish(req);
      if (each != std::array{peer, i}) throw std::runtime_error("another message arrived");
    }
    std::set<std::array<int, 2>> from_any;
    for (int i = 0; i < messages; ++i) {
      auto& each = received[static_cast<std::size_t>(messages + i)];
      auto& req = start(3 * messages + i, muster::any_source, 5, each);
      transport.receive(req);
      finish(req);
      const int peer = (world.rank() + ranks * messages - 11 * each[1] - 1) % ranks;
      if (each[0] != peer || req.source != peer) throw std::runtime_error("a message came from another rank");
      from_any.insert(each);
    }
    if (from_any.size() != messages) throw std::runtime_error("a message arrived twice");
    for (auto& req : requests) finish(req);
    muster::barrier(world);
  });
}
