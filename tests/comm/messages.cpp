// Messages between ranks beside their collectives: tags, order, any source, cancelled messages.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/random.hpp>
#include <muster/testing/transport_kit.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

using muster::testing::detail::byte_at;
using muster::testing::detail::parcel;
using muster::testing::detail::patience;
using test::require;

// Ring size of two ranks over shared memory: the sender of a larger message has to continue it.
const std::size_t ring = muster::detail::slot_layout(2).fifo_bytes;
const std::size_t several_rings = 5 * ring + 1000;

void run(test::fabric over, int ranks, const std::function<void(muster::group&, muster::transport&)>& body) {
  test::run_ranks(over, ranks, [&](muster::group& world) { body(world, world.transport()); });
}

}  // namespace

TEST_CASE("messages with one tag keep their order, whatever their size") {
  test::run_ranks(GENERATE(from_range(test::fabrics())), 2, muster::testing::check_message_order);
}

// The awaited message is behind others in the ring.
TEST_CASE("a message can be received before one that was sent before it") {
  test::run_ranks(GENERATE(from_range(test::fabrics())), 2, muster::testing::check_receives_by_tag);
}

TEST_CASE("from any source comes one from each, in the order of each") {
  test::run_ranks(GENERATE(from_range(test::fabrics())), 4, muster::testing::check_any_source);
}

TEST_CASE("one that does not fit its receive is a mismatch there") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const auto thrown = test::outcomes(over, 2, [](muster::group& world) {
    auto& transport = world.transport();
    parcel message(3, world.rank() == 0 ? 100 : 99);
    message.start(transport, world.rank() == 0, 1 - world.rank(), 9);
    message.finish(transport);
  });
  REQUIRE(thrown[1]);
  CHECK_THROWS_AS(std::rethrow_exception(thrown[1]), muster::mismatch_error);
  CHECK_THAT(muster::describe(thrown[1]), contains("100 bytes from rank 0 with tag 9"));
}

TEST_CASE("a receive that is taken back leaves the messages behind it whole") {
  const auto over = GENERATE(from_range(test::fabrics()));
  for (int tests_before = 0; tests_before < 4; ++tests_before) {  // with more tests, more of the message has arrived
    test::run_ranks(over, 2,
                    [&](muster::group& world) { muster::testing::check_cancelled_receive(world, tests_before); });
  }
}

TEST_CASE("a receive that is taken back in the middle of its message is written no further") {
  std::atomic<bool> cancelled{false};
  run(test::fabric::shm, 2, [&](muster::group& world, muster::transport& transport) {
    const std::size_t large = several_rings;
    parcel first(1, large);
    // as part of a collective: the message is sent without a request
    first.r.signature.kind = muster::collective::broadcast;
    if (world.rank() == 0) {
      first.start(transport, true, 1, 0);
      cancelled.wait(false);
      first.finish(transport);
      parcel second(2, 1000);
      second.start(transport, true, 1, 3);
      second.finish(transport);
    } else {
      const std::shared_ptr<void> at_the_end(nullptr, [&](void*) {
        cancelled = true;
        cancelled.notify_all();
      });
      std::fill(first.data.begin(), first.data.end(), std::uint8_t{0});
      first.start(transport, false, 0, 0);
      const auto until = muster::deadline_after(patience);
      while (first.r.received == 0) {
        require(!transport.test(first.r), "its sender waits");
        require(muster::clock::now() < until, "a message begins");
      }
      first.r.owner->cancel(first.r);
      std::fill(first.data.begin(), first.data.end(), std::uint8_t{42});
      cancelled = true;
      cancelled.notify_all();
      parcel second(1000);
      second.start(transport, false, 0, 3);
      second.finish(transport);
      second.expect(2, 1000);
      require(std::ranges::count(first.data, 42) == std::ptrdiff_t(large), "no rank writes there");
    }
    muster::barrier(world);
  });
}

TEST_CASE("a sender is not left with a message whose receive was taken back when it had begun") {
  run(GENERATE(from_range(test::fabrics())), 2, [](muster::group& world, muster::transport& transport) {
    const std::size_t large = several_rings;
    if (world.rank() == 0) {
      parcel sent(1, large);
      sent.start(transport, true, 1, 3);
      sent.finish(transport);
    } else {
      parcel dropped(large);
      dropped.r.received = 0;
      dropped.start(transport, false, 0, 3);
      const auto until = muster::deadline_after(patience);
      while (dropped.r.received == 0 && !transport.test(dropped.r))
        require(muster::clock::now() < until, "a message does not begin");
    }
    muster::barrier(world);  // this rank waits for nothing else
  });
}

// The receiver expects the rest of a message whose start has arrived; the buffer belongs to the sender again at once.
TEST_CASE("a send that is taken back ends for its receiver, and those behind it are whole") {
  run(test::fabric::shm, 2, [](muster::group& world, muster::transport& transport) {
    constexpr std::size_t bytes = muster::detail::shm_messages::eager;
    const std::size_t before = ring / bytes - 1;
    if (world.rank() == 0) {
      {
        std::deque<parcel> first;
        for (std::size_t message = 0; message < before; ++message)
          first.emplace_back(message, bytes).start(transport, true, 1, 3);
        parcel dropped(before, bytes);
        parcel never(before + 1, 50);
        dropped.start(transport, true, 1, 3);  // the start of the message fills the ring
        never.start(transport, true, 1, 3);
        require(dropped.r.owner != nullptr && never.r.owner != nullptr, "the ring is full");
        never.r.owner->cancel(never.r);
        dropped.r.owner->cancel(dropped.r);
        std::fill(dropped.data.begin(), dropped.data.end(), std::uint8_t{0});
      }
      muster::barrier(world);
      parcel last(4, 2000);
      last.start(transport, true, 1, 3);
      last.finish(transport);
    } else {
      muster::barrier(world);
      for (std::uint64_t message = 0; message <= before; ++message) {
        parcel got(bytes);
        got.start(transport, false, 0, 3);
        got.finish(transport);
        got.expect(message, bytes);
      }
      parcel last(2000);
      last.start(transport, false, 0, 3);
      last.finish(transport);
      last.expect(4, 2000);
    }
    muster::barrier(world);
  });
}

TEST_CASE("a large send that is taken back when it was announced comes all the same") {
  for (int tests_before = 0; tests_before < 8; ++tests_before) {  // with more tests, more of the message has arrived
    run(test::fabric::shm, 2, [&](muster::group& world, muster::transport& transport) {
      const std::size_t large = several_rings;
      if (world.rank() == 0) {
        {
          parcel dropped(1, large);
          dropped.start(transport, true, 1, 3);
          for (int i = 0; i < tests_before; ++i) (void)transport.test(dropped.r);
          if (dropped.r.owner != nullptr) dropped.r.owner->cancel(dropped.r);
          std::fill(dropped.data.begin(), dropped.data.end(), std::uint8_t{0});
        }
        parcel last(4, 2000);
        last.start(transport, true, 1, 3);
        last.finish(transport);
        muster::barrier(world);
        return;
      }
      for (const auto& [message, bytes] : {std::pair{std::uint64_t{1}, large}, {4, 2000}}) {
        parcel got(bytes);
        got.start(transport, false, 0, 3);
        got.finish(transport);
        got.expect(message, bytes);
      }
      muster::barrier(world);
    });
  }
}

// A send continues from the new buffer at any moment, and a receive continues into the new buffer: the old memory
// belongs to its owner.
TEST_CASE("the buffer of a message that is under way can move", "[slow]") {
  const auto over = GENERATE(from_range(test::fabrics()));
  for (int tests_before = 0; tests_before < 6; ++tests_before) {  // with more tests, more of the message has arrived
    run(over, 2, [&](muster::group& world, muster::transport& transport) {
      const bool moves = transport.abilities().replaces_buffers;
      const auto test_a_little = [&](muster::request& r) {
        for (int i = 0; i < tests_before; ++i) (void)transport.test(r);
      };
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{70000}, several_rings}) {
        if (world.rank() == 0) {
          parcel first(1, bytes);
          parcel later = parcel(1, bytes);
          parcel behind(2, 1000);
          first.start(transport, true, 1, 3);
          behind.start(transport, true, 1, 3);
          test_a_little(first.r);
          const bool under_way = first.r.owner != nullptr;
          if (under_way) {
            const bool moved = first.r.owner->replace_buffer(first.r, reinterpret_cast<std::byte*>(later.data.data()));
            require(moved == moves, "replace_buffer matches the ability");
          }
          if (moves || !under_way) std::fill(first.data.begin(), first.data.end(), std::uint8_t{0});
          first.finish(transport);
          behind.finish(transport);
        } else {
          parcel got(several_rings);
          parcel elsewhere(several_rings);
          got.start(transport, false, 0, 3);
          test_a_little(got.r);
          const bool leaves = tests_before % 2 == 1 && moves && got.r.owner != nullptr;
          if (leaves) {
            const bool moved = got.r.owner->replace_buffer(got.r, reinterpret_cast<std::byte*>(elsewhere.data.data()));
            require(moved, "the buffer moves");
            std::fill(got.data.begin(), got.data.end(), std::uint8_t{42});
          }
          got.finish(transport);
          if (leaves)
            require(std::ranges::count(got.data, 42) == std::ptrdiff_t(several_rings) && got.r.received == bytes,
                    "no rank writes there");
          else
            got.expect(1, bytes);
          parcel behind(1000);
          behind.start(transport, false, 0, 3);
          behind.finish(transport);
          behind.expect(2, 1000);
        }
      }
      muster::barrier(world);
    });
  }
}

// Every rank sends to every rank, receives in another order, partly from any source, and cancels some receives.
TEST_CASE("any traffic arrives: random sizes, tags, sources and orders") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const int ranks = GENERATE(1, 2, 3, 5);
  test::run_ranks(over, ranks, muster::testing::check_random_messages);
}

// The library does not trust the contents that a peer writes into the rings: each case was an access outside of the
// memory.
TEST_CASE("over shm a peer whose words do not fit what was said before is named") {
  namespace shm = muster::detail;
  using word = shm::shm_messages::header;
  const auto header_of = [](shm::message_kind kind, std::uint64_t bytes) {
    return word{{.signature = {}, .total = bytes, .number = 5, .group_id = 0, .tag = 7, .kind = kind}};
  };
  using enum shm::message_kind;
  struct way {
    const char* error_text;
    std::vector<word> headers;
    std::uint64_t more;  // bytes that the peer claims beyond the headers
  };
  const std::vector<way> ways = {
      {"was not announced", {header_of(cts, 0)}, 0},
      {"without a clear-to-send", {header_of(data, 100)}, 0},
      {"another size than its request-to-send", {header_of(rts, 100), header_of(data, 900)}, 0},
      {"beyond its size", {}, std::uint64_t{1} << 40}};
  for (const auto& way : ways) {
    const auto hosts = test::make_hosts(2);
    const std::uint64_t lanes[] = {shm::shm_group::allocate_slot(hosts[0]->own(), 2),
                                   shm::shm_group::allocate_slot(hosts[1]->own(), 2)};
    shm::shm_group mine(hosts[0], {0, 1}, 0, lanes);
    shm::shm_group peers(hosts[1], {0, 1}, 1, lanes);
    shm::shm_messages messages(mine);
    struct owner final : muster::transport_decorator {
      explicit owner(shm::shm_messages& messages_in) : transport_decorator(nullptr), messages(messages_in) {}
      void cancel(muster::request& r) noexcept override { messages.cancel(r); }
      shm::shm_messages& messages;
    } owner_transport(messages);
    std::vector<std::byte> data(100);
    muster::request r;
    r.data = data.data();
    r.bytes = data.size();
    r.peer = 1;
    r.tag = 7;
    messages.receive(r, owner_transport);
    auto& ring = peers.message_ring(1, 0);
    const std::size_t bytes = way.headers.size() * sizeof(word);
    if (bytes > 0) std::memcpy(ring.bytes(), way.headers.data(), bytes);
    ring.head = bytes + way.more;
    INFO(way.error_text);
    try {
      for (int i = 0; i < 5; ++i) (void)messages.test(r);
      FAIL("the header is accepted");
    } catch (const muster::peer_failure& failure) {
      CHECK(failure.ranks() == std::vector<int>{1});
      CHECK_THAT(failure.what(), contains(way.error_text));
    }
  }
}

#ifdef MUSTER_HAS_TCP
// A thread that advances the connections finishes the requests of another thread: a data race if the other thread reads
// them without atomics.
TEST_CASE("threads with groups of their own end each other's requests") {
  const auto over = GENERATE(test::fabric::tcp, test::fabric::hierarchical_over_tcp);
  run(over, 3, [](muster::group& world, muster::transport& transport) {
    auto twin = world.duplicate();
    constexpr int rounds = 300;
    std::exception_ptr failure;
    std::thread side([&] {
      try {
        std::vector<int> all(3);
        for (int i = 0; i < rounds; ++i) muster::allgather(twin, std::span(&i, 1), all);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    const int next = (world.rank() + 1) % 3;
    const int before = (world.rank() + 2) % 3;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      parcel sent(i, 64);
      parcel got(64);
      got.start(transport, false, before, 1);
      sent.start(transport, true, next, 1);
      const auto until = muster::deadline_after(patience);
      while (!transport.test(got.r)) require(muster::clock::now() < until, "a message does not arrive");
      got.expect(i, 64);
      sent.finish(transport);
    }
    for (std::uint64_t i = 0; i < rounds; ++i) {
      std::deque<parcel> cancelled;
      for (int k = 0; k < 8; ++k) cancelled.emplace_back(64).start(transport, false, before, 2);
      parcel sent(i, 64);
      sent.start(transport, true, next, 2);
      sent.finish(transport);
    }
    side.join();
    if (failure) std::rethrow_exception(failure);
    muster::barrier(world);
  });
}
#endif
