// Messages between ranks beside their collectives: tags, order, any source, messages that are taken back.
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
#include "catch.hpp"
#include "comm/ranks.hpp"

namespace {

constexpr muster::seconds patience{60};

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

test::fabric any_fabric() { return GENERATE(from_range(test::fabrics())); }

std::uint8_t byte_at(std::uint64_t message, std::size_t i) {
  return static_cast<std::uint8_t>(muster::mix(message * 0x9e3779b9u + i / 8) >> 8 * (i % 8));
}

/// A message with a content of its own, or room for one.
struct parcel {
  explicit parcel(std::size_t room) : data(room) {}
  parcel(std::uint64_t message, std::size_t bytes) : data(bytes) {
    for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_at(message, i);
  }
  void start(muster::transport& over, bool sends, int peer, std::uint32_t tag) {
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = data.size();
    r.peer = peer;
    r.tag = tag;
    if (sends)
      over.send(r);
    else
      over.receive(r);
  }
  void finish(muster::transport& over) {
    const auto until = muster::deadline_after(patience);
    while (!over.test(r)) {
      require(muster::clock::now() < until, "a message does not come to its end");
      over.pause(muster::deadline_after(muster::seconds(0.001)));
    }
  }
  void expect(std::uint64_t message, std::size_t bytes) const {
    require(r.received == bytes, "as long as it was sent");
    for (std::size_t i = 0; i < bytes; ++i) require(data[i] == byte_at(message, i), "the content that was sent");
  }

  std::vector<std::uint8_t> data;
  muster::request r;  // takes itself back before the memory goes
};

void run(test::fabric over, int ranks, const std::function<void(muster::group&, muster::transport&)>& body) {
  test::run_ranks(over, ranks, [&](muster::group& world) { body(world, world.transport()); });
}

}  // namespace

TEST_CASE("messages with one tag keep their order, whatever their size") {
  run(any_fabric(), 2, [](muster::group& world, muster::transport& over) {
    const std::size_t sizes[] = {0, 1, 63, 64, 65, 5000, 131072 - 64, 131072, 131073, 1000000, 3};
    if (world.rank() == 0) {
      std::deque<parcel> sent;
      for (std::size_t i = 0; i < std::size(sizes); ++i) sent.emplace_back(i, sizes[i]).start(over, true, 1, 5);
      for (auto& one : sent) one.finish(over);
    } else {
      for (std::size_t i = 0; i < std::size(sizes); ++i) {
        parcel got(1000000);
        got.start(over, false, 0, 5);
        got.finish(over);
        require(got.r.source == 0, "the source");
        got.expect(i, sizes[i]);
      }
    }
    muster::barrier(world);
  });
}

// The one that is waited for lies behind others in the ring.
TEST_CASE("a message can be received before one that was sent before it") {
  run(any_fabric(), 2, [](muster::group& world, muster::transport& over) {
    const std::vector<std::pair<std::uint32_t, std::size_t>> sent = {{1, 10}, {2, 300000}, {3, 0}, {4, 70000}, {5, 64}};
    if (world.rank() == 0) {
      std::deque<parcel> all;
      for (const auto& [tag, bytes] : sent) all.emplace_back(tag, bytes).start(over, true, 1, tag);
      for (auto& one : all) one.finish(over);
    } else {
      for (const std::size_t i : {4u, 2u, 1u, 3u, 0u}) {
        parcel got(sent[i].second + 9);
        got.start(over, false, 0, sent[i].first);
        got.finish(over);
        got.expect(sent[i].first, sent[i].second);
      }
    }
    muster::barrier(world);
  });
}

TEST_CASE("from any source comes one from each, in the order of each") {
  run(any_fabric(), 4, [](muster::group& world, muster::transport& over) {
    constexpr std::uint64_t each = 20;
    const auto size_of = [](std::uint64_t message) { return static_cast<std::size_t>(muster::mix(message) % 9000); };
    if (world.rank() != 0) {
      std::deque<parcel> sent;
      for (std::uint64_t i = 0; i < each; ++i) {
        const std::uint64_t message = static_cast<std::uint64_t>(world.rank()) * 100 + i;
        sent.emplace_back(message, size_of(message)).start(over, true, 0, 7);
      }
      for (auto& one : sent) one.finish(over);
    } else {
      std::map<int, std::uint64_t> next;
      for (std::uint64_t i = 0; i < 3 * each; ++i) {
        parcel got(9000);
        got.start(over, false, muster::any_source, 7);
        got.finish(over);
        const std::uint64_t message = static_cast<std::uint64_t>(got.r.source) * 100 + next[got.r.source]++;
        got.expect(message, size_of(message));
      }
      for (int r = 1; r < 4; ++r) require(next[r] == each, "all of them");
    }
    muster::barrier(world);
  });
}

TEST_CASE("one that does not fit its receive is a mismatch there") {
  const auto over = any_fabric();
  const auto thrown = test::outcomes(over, 2, [](muster::group& world) {
    auto& transport = world.transport();
    parcel one(3, world.rank() == 0 ? 100 : 99);
    one.start(transport, world.rank() == 0, 1 - world.rank(), 9);
    one.finish(transport);
  });
  REQUIRE(thrown[1]);
  CHECK_THROWS_AS(std::rethrow_exception(thrown[1]), muster::mismatch_error);
  CHECK_THAT(muster::describe(thrown[1]), contains("100 bytes from rank 0 with tag 9"));
}

TEST_CASE("a receive that is taken back leaves the messages behind it whole") {
  const auto over = any_fabric();
  for (int tests_before = 0; tests_before < 4; ++tests_before) {  // the more, the further it has come
    run(over, 2, [&](muster::group& world, muster::transport& transport) {
      constexpr std::size_t large = 700000;  // several rings
      if (world.rank() == 0) {
        parcel first(1, large);
        parcel second(2, 1000);
        first.start(transport, true, 1, 3);
        second.start(transport, true, 1, 3);
        first.finish(transport);
        second.finish(transport);
      } else {
        bool had_begun = false;
        {
          parcel dropped(large);
          dropped.start(transport, false, 0, 3);
          for (int i = 0; i < tests_before; ++i) {
            (void)transport.test(dropped.r);
            transport.pause(muster::deadline_after(muster::seconds(0.001)));
          }
          had_begun = dropped.r.source == 0 && dropped.r.received == large;
        }
        // Not yet begun, the message goes to the next receive; begun, the rest of it goes nowhere.
        parcel next(large);
        next.start(transport, false, 0, 3);
        next.finish(transport);
        if (next.r.received == large) {
          next.expect(1, large);
          parcel last(1000);
          last.start(transport, false, 0, 3);
          last.finish(transport);
          last.expect(2, 1000);
        } else {
          require(had_begun, "only what had begun is lost");
          next.expect(2, 1000);
        }
      }
      muster::barrier(world);
    });
  }
}

TEST_CASE("a receive that is taken back in the middle of its message is written no further") {
  std::atomic<bool> taken_back{false};
  run(test::fabric::shm, 2, [&](muster::group& world, muster::transport& transport) {
    constexpr std::size_t large = 700000;  // several rings: the sender has to go on
    parcel first(1, large);
    first.r.mark.kind = muster::collective::broadcast;  // as part of a collective: it comes unasked
    if (world.rank() == 0) {
      first.start(transport, true, 1, 0);
      taken_back.wait(false);
      first.finish(transport);
      parcel second(2, 1000);
      second.start(transport, true, 1, 3);
      second.finish(transport);
    } else {
      const std::shared_ptr<void> at_the_end(nullptr, [&](void*) {
        taken_back = true;
        taken_back.notify_all();
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
      taken_back = true;
      taken_back.notify_all();
      parcel second(1000);
      second.start(transport, false, 0, 3);
      second.finish(transport);
      second.expect(2, 1000);
      require(std::ranges::count(first.data, 42) == large, "nobody writes there");
    }
    muster::barrier(world);
  });
}

TEST_CASE("a sender is not left with a message whose receive was taken back when it had begun") {
  run(any_fabric(), 2, [](muster::group& world, muster::transport& transport) {
    constexpr std::size_t large = 700000;
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
    muster::barrier(world);  // all that this rank waits for
  });
}

// The receiver counts on the rest of a message whose beginning it has; the buffer is the sender's again at once.
TEST_CASE("a send that is taken back ends for its receiver, and those behind it are whole") {
  run(test::fabric::shm, 2, [](muster::group& world, muster::transport& transport) {
    constexpr std::size_t half = 65536;  // of the ring
    if (world.rank() == 0) {
      {
        parcel first(0, half);
        parcel dropped(1, half);
        parcel never(2, 50);
        first.start(transport, true, 1, 3);
        dropped.start(transport, true, 1, 3);  // its beginning fills the ring
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
      for (std::uint64_t message = 0; message < 2; ++message) {
        parcel got(half);
        got.start(transport, false, 0, 3);
        got.finish(transport);
        got.expect(message, half);
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
  for (int tests_before = 0; tests_before < 8; ++tests_before) {  // the more, the further it has come
    run(test::fabric::shm, 2, [&](muster::group& world, muster::transport& transport) {
      constexpr std::size_t large = 700000;
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

// What is sent goes on from another place, at any moment, and what comes goes to another: the old memory is its
// owner's.
TEST_CASE("the buffer of a message that is under way can move") {
  const auto over = any_fabric();
  for (int tests_before = 0; tests_before < 6; ++tests_before) {  // the more, the further it has come
    run(over, 2, [&](muster::group& world, muster::transport& transport) {
      const bool moves = transport.abilities().moves_buffers;
      const auto look_a_little = [&](muster::request& r) {
        for (int i = 0; i < tests_before; ++i) (void)transport.test(r);
      };
      for (const std::size_t bytes : {0u, 100u, 70000u, 700000u}) {
        if (world.rank() == 0) {
          parcel first(1, bytes);
          parcel later = parcel(1, bytes);
          parcel behind(2, 1000);
          first.start(transport, true, 1, 3);
          behind.start(transport, true, 1, 3);
          look_a_little(first.r);
          const bool under_way = first.r.owner != nullptr;
          if (under_way) {
            const bool moved = first.r.owner->move_buffer(first.r, reinterpret_cast<std::byte*>(later.data.data()));
            require(moved == moves, "a transport does what it says that it does");
          }
          if (moves || !under_way) std::fill(first.data.begin(), first.data.end(), std::uint8_t{0});
          first.finish(transport);
          behind.finish(transport);
        } else {
          parcel got(700000);
          parcel elsewhere(700000);
          got.start(transport, false, 0, 3);
          look_a_little(got.r);
          const bool leaves = tests_before % 2 == 1 && moves && got.r.owner != nullptr;
          if (leaves) {
            const bool moved = got.r.owner->move_buffer(got.r, reinterpret_cast<std::byte*>(elsewhere.data.data()));
            require(moved, "what moves moves");
            std::fill(got.data.begin(), got.data.end(), std::uint8_t{42});
          }
          got.finish(transport);
          if (leaves)
            require(std::ranges::count(got.data, 42) == 700000 && got.r.received == bytes, "nobody writes there");
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

// Everybody sends to everybody, receives in another order, partly from anybody, takes some receives back.
TEST_CASE("any traffic arrives: random sizes, tags, sources and orders") {
  const auto over = any_fabric();
  const int ranks = GENERATE(1, 2, 3, 5);
  constexpr std::uint64_t each = 60;  // from every rank to every rank
  constexpr std::uint32_t tags = 4;
  const auto tag_of = [](std::uint64_t message) { return 1 + static_cast<std::uint32_t>(muster::mix(message) % tags); };
  const auto size_of = [](std::uint64_t message) {
    const std::uint64_t word = muster::mix(message + 5);
    return static_cast<std::size_t>(word % (std::uint64_t{1} << (word >> 32) % 18));
  };
  const auto message_of = [](int from, int to, std::uint64_t i) {
    return static_cast<std::uint64_t>(from * 16 + to) << 32 | i;
  };
  run(over, ranks, [&](muster::group& world, muster::transport& transport) {
    const int me = world.rank();
    muster::random_stream random(20261121, static_cast<std::uint64_t>(me));
    // By tag, what will come of each source, in its order.
    std::map<std::pair<int, std::uint32_t>, std::deque<std::uint64_t>> to_come;
    for (int from = 0; from < world.size(); ++from) {
      for (std::uint64_t i = 0; i < each; ++i) {
        const auto message = message_of(from, me, i);
        to_come[{from, tag_of(message)}].push_back(message);
      }
    }
    std::vector<std::uint64_t> next(static_cast<std::size_t>(world.size()), 0);
    std::deque<parcel> sending;
    std::uint64_t received = 0;
    const auto all_begun = [&] { return std::all_of(next.begin(), next.end(), [&](auto n) { return n == each; }); };
    while (received < each * static_cast<std::uint64_t>(world.size()) || !sending.empty() || !all_begun()) {
      const int peer = static_cast<int>(random.below(static_cast<std::uint64_t>(world.size())));
      auto& number = next[static_cast<std::size_t>(peer)];
      if (number < each && sending.size() < 30) {
        const auto message = message_of(me, peer, number++);
        sending.emplace_back(message, size_of(message)).start(transport, true, peer, tag_of(message));
      }
      while (!sending.empty() && transport.test(sending.front().r)) sending.pop_front();
      const auto tag = 1 + static_cast<std::uint32_t>(random.below(tags));
      const bool from_any = random.below(3) == 0;
      if (!from_any && to_come[{peer, tag}].empty()) continue;
      parcel got(std::size_t{1} << 17);
      got.start(transport, false, from_any ? muster::any_source : peer, tag);
      // Either it comes soon, or it is taken back, if nothing has come of it.
      for (int i = 0; i < 40 && !transport.test(got.r); ++i) std::this_thread::yield();
      const bool begun = got.r.owner != nullptr && got.r.received != 0;
      if (begun) {
        const auto until = muster::deadline_after(patience);
        while (!transport.test(got.r)) require(muster::clock::now() < until, "a message does not come to its end");
      }
      if (got.r.owner != nullptr) continue;
      auto& expected = to_come[{got.r.source, tag}];
      require(!expected.empty(), "nothing comes twice");
      got.expect(expected.front(), size_of(expected.front()));
      expected.pop_front();
      ++received;
    }
    muster::barrier(world);
  });
}

// What a peer writes into the rings is not believed: each of these was an access to memory that is not there.
TEST_CASE("over shm a peer whose words do not fit what was said before is named") {
  namespace shm = muster::detail;
  struct word {  // as shm_messages has it
    muster::stamp mark;
    std::uint64_t bytes;
    std::uint32_t tag;
    std::uint32_t what;
    std::uint64_t number;
    std::byte rest[16];
  };
  static_assert(sizeof(word) == shm::cache_line);
  constexpr std::uint32_t announce = 1, clear = 2, body = 3;
  struct way {
    const char* says;
    std::vector<word> words;
    std::uint64_t more;  // bytes that are claimed beyond them
  };
  const std::vector<way> ways = {{"was not announced", {{{}, 0, 0, clear, 5, {}}}, 0},
                                 {"not asked for", {{{}, 100, 7, body, 5, {}}}, 0},
                                 {"another message", {{{}, 100, 7, announce, 5, {}}, {{}, 900, 7, body, 5, {}}}, 0},
                                 {"more bytes than", {}, std::uint64_t{1} << 40}};
  for (const auto& way : ways) {
    const auto hosts = test::make_hosts(2);
    const std::uint64_t lanes[] = {shm::shm_board::allocate_lane(hosts[0]->own(), 2),
                                   shm::shm_board::allocate_lane(hosts[1]->own(), 2)};
    shm::shm_board mine(hosts[0], {0, 1}, 0, lanes);
    shm::shm_board peers(hosts[1], {0, 1}, 1, lanes);
    shm::shm_messages messages(mine);
    struct owner final : muster::transport_decorator {
      explicit owner(shm::shm_messages& of) : transport_decorator(nullptr), messages(of) {}
      void cancel(muster::request& r) noexcept override { messages.cancel(r); }
      shm::shm_messages& messages;
    } of(messages);
    std::vector<std::byte> data(100);
    muster::request r;
    r.data = data.data();
    r.bytes = data.size();
    r.peer = 1;
    r.tag = 7;
    messages.receive(r, of);
    auto& ring = peers.messages(1, 0);
    const std::size_t bytes = way.words.size() * sizeof(word);
    if (bytes > 0) std::memcpy(ring.bytes(), way.words.data(), bytes);
    ring.head = bytes + way.more;
    INFO(way.says);
    try {
      for (int i = 0; i < 5; ++i) (void)messages.test(r);
      FAIL("it is believed");
    } catch (const muster::peer_failure& failure) {
      CHECK(failure.ranks() == std::vector<int>{1});
      CHECK_THAT(failure.what(), contains(way.says));
    }
  }
}

#ifdef MUSTER_HAS_TCP
// A thread that moves the connections ends the requests of another: a data race where that one looks at them plainly.
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
      while (!transport.test(got.r)) require(muster::clock::now() < until, "a message does not come");
      got.expect(i, 64);
      sent.finish(transport);
    }
    for (std::uint64_t i = 0; i < rounds; ++i) {
      std::deque<parcel> taken_back;
      for (int k = 0; k < 8; ++k) taken_back.emplace_back(64).start(transport, false, before, 2);
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
