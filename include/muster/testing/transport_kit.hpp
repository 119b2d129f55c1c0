// Tests of a transport against the requirements of groups: ordered and unordered messages, receives from any source,
// cancelled receives; then every collective, also in groups of some of the ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/random.hpp>
#include <muster/testing/collective_kit.hpp>

namespace muster { inline namespace v0 { namespace testing {

namespace detail {

constexpr seconds patience{60};

inline void require(bool condition, const char* requirement) {
  if (!condition) throw std::runtime_error(std::string("the transport violates its contract: ") + requirement);
}

inline std::uint8_t byte_at(std::uint64_t number, std::size_t i) {
  return static_cast<std::uint8_t>(mix(number * 0x9e3779b9u + i / 8) >> 8 * (i % 8));
}

/// A message with its own content, or a buffer for a message.
struct parcel {
  explicit parcel(std::size_t room) : data(room) {}
  parcel(std::uint64_t number, std::size_t bytes) : data(bytes) {
    for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_at(number, i);
  }
  void start(transport& transport, bool sends, int peer, std::uint32_t tag) {
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = data.size();
    r.peer = peer;
    r.tag = tag;
    if (sends)
      transport.send(r);
    else
      transport.receive(r);
  }
  void finish(transport& transport) {
    const auto deadline = deadline_after(patience);
    while (!transport.test(r)) {
      require(clock::now() < deadline, "a message does not complete");
      transport.pause(deadline_after(seconds(0.001)));
    }
  }
  void expect(std::uint64_t number, std::size_t bytes) const {
    require(r.received == bytes, "a message has the wrong size");
    for (std::size_t i = 0; i < bytes; ++i) require(data[i] == byte_at(number, i), "a message has the wrong content");
  }

  std::vector<std::uint8_t> data;
  request r;  // declared last, so that it is cancelled before the memory is freed
};

}  // namespace detail

/// Checks that messages from rank 0 to rank 1 with one tag arrive in order, whatever their size. Like all checks below:
/// collective, over groups of two ranks or more; throws std::runtime_error with the violated requirement.
inline void check_message_order(group& world) {
  auto& transport = world.transport();
  const std::size_t sizes[] = {0, 1, 63, 64, 65, 5000, 131072 - 64, 131072, 131073, 1000000, 3};
  if (world.rank() == 0) {
    std::deque<detail::parcel> sent;
    for (std::size_t i = 0; i < std::size(sizes); ++i) sent.emplace_back(i, sizes[i]).start(transport, true, 1, 5);
    for (auto& message : sent) message.finish(transport);
  } else if (world.rank() == 1) {
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      detail::parcel got(1000000);
      got.start(transport, false, 0, 5);
      got.finish(transport);
      detail::require(got.r.source == 0, "a message has the wrong source");
      got.expect(i, sizes[i]);
    }
  }
  barrier(world);
}

/// Checks that messages with different tags can be received in any order.
inline void check_receives_by_tag(group& world) {
  auto& transport = world.transport();
  const std::vector<std::pair<std::uint32_t, std::size_t>> sent = {{1, 10}, {2, 300000}, {3, 0}, {4, 70000}, {5, 64}};
  if (world.rank() == 0) {
    std::deque<detail::parcel> all;
    for (const auto& [tag, bytes] : sent) all.emplace_back(tag, bytes).start(transport, true, 1, tag);
    for (auto& message : all) message.finish(transport);
  } else if (world.rank() == 1) {
    for (const std::size_t i : {4u, 2u, 1u, 3u, 0u}) {
      detail::parcel got(sent[i].second + 9);
      got.start(transport, false, 0, sent[i].first);
      got.finish(transport);
      got.expect(sent[i].first, sent[i].second);
    }
  }
  barrier(world);
}

/// Checks that receives from any source get each sender's messages in order, for transports with the ability
/// `any_source`.
inline void check_any_source(group& world) {
  auto& transport = world.transport();
  constexpr std::uint64_t each = 20;
  const auto size_of = [](std::uint64_t number) { return static_cast<std::size_t>(mix(number) % 9000); };
  if (world.rank() != 0) {
    std::deque<detail::parcel> sent;
    for (std::uint64_t i = 0; i < each; ++i) {
      const std::uint64_t message = static_cast<std::uint64_t>(world.rank()) * 100 + i;
      sent.emplace_back(message, size_of(message)).start(transport, true, 0, 7);
    }
    for (auto& message : sent) message.finish(transport);
  } else {
    std::map<int, std::uint64_t> next;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(world.size() - 1) * each; ++i) {
      detail::parcel got(9000);
      got.start(transport, false, any_source, 7);
      got.finish(transport);
      const std::uint64_t message = static_cast<std::uint64_t>(got.r.source) * 100 + next[got.r.source]++;
      got.expect(message, size_of(message));
    }
    for (int r = 1; r < world.size(); ++r) detail::require(next[r] == each, "a message is lost");
  }
  barrier(world);
}

/// Checks that a receive that is cancelled after `tests_before` polls leaves the later messages complete.
inline void check_cancelled_receive(group& world, int tests_before) {
  auto& transport = world.transport();
  constexpr std::size_t large = 700000;  // several rings
  if (world.rank() == 0) {
    detail::parcel first(1, large);
    detail::parcel second(2, 1000);
    first.start(transport, true, 1, 3);
    second.start(transport, true, 1, 3);
    first.finish(transport);
    second.finish(transport);
  } else if (world.rank() == 1) {
    bool had_begun = false;
    {
      detail::parcel dropped(large);
      dropped.start(transport, false, 0, 3);
      for (int i = 0; i < tests_before; ++i) {
        (void)transport.test(dropped.r);
        transport.pause(deadline_after(seconds(0.001)));
      }
      had_begun = dropped.r.source == 0 && dropped.r.received == large;
    }
    // If the message had not begun, the next receive gets it. If it had begun, its rest is dropped.
    detail::parcel next(large);
    next.start(transport, false, 0, 3);
    next.finish(transport);
    if (next.r.received == large) {
      next.expect(1, large);
      detail::parcel last(1000);
      last.start(transport, false, 0, 3);
      last.finish(transport);
      last.expect(2, 1000);
    } else {
      detail::require(had_begun, "a message is lost that had not begun");
      next.expect(2, 1000);
    }
  }
  barrier(world);
}

/// Sends messages of random sizes and tags between all ranks, and checks their content and order. The sources and the
/// order of the receives are random, and some receives are cancelled.
inline void check_random_messages(group& world) {
  auto& transport = world.transport();
  constexpr std::uint64_t each = 60;  // from every rank to every rank
  constexpr std::uint32_t tags = 4;
  const auto tag_of = [](std::uint64_t number) { return 1 + static_cast<std::uint32_t>(mix(number) % tags); };
  const auto size_of = [](std::uint64_t number) {
    const std::uint64_t word = mix(number + 5);
    return static_cast<std::size_t>(word % (std::uint64_t{1} << (word >> 32) % 18));
  };
  const auto message_of = [](int sender, int receiver, std::uint64_t i) {
    return static_cast<std::uint64_t>(sender * 16 + receiver) << 32 | i;
  };
  const int me = world.rank();
  random_stream random(20261121, static_cast<std::uint64_t>(me));
  // The messages that will arrive, by source and tag, in their order.
  std::map<std::pair<int, std::uint32_t>, std::deque<std::uint64_t>> to_come;
  for (int source = 0; source < world.size(); ++source) {
    for (std::uint64_t i = 0; i < each; ++i) {
      const auto message = message_of(source, me, i);
      to_come[{source, tag_of(message)}].push_back(message);
    }
  }
  std::vector<std::uint64_t> next(static_cast<std::size_t>(world.size()), 0);
  std::deque<detail::parcel> sending;
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
    detail::parcel got(std::size_t{1} << 17);
    got.start(transport, false, from_any ? any_source : peer, tag);
    // The message arrives soon, or the receive is cancelled if nothing of the message has arrived.
    for (int i = 0; i < 40 && !transport.test(got.r); ++i) std::this_thread::yield();
    const bool has_begun = got.r.owning_transport() != nullptr && got.r.received != 0;
    if (has_begun) {
      const auto deadline = deadline_after(detail::patience);
      while (!transport.test(got.r)) detail::require(clock::now() < deadline, "a message does not complete");
    }
    if (got.r.owning_transport() != nullptr) continue;
    auto& expected = to_come[{got.r.source, tag}];
    detail::require(!expected.empty(), "a message arrives twice");
    got.expect(expected.front(), size_of(expected.front()));
    expected.pop_front();
    ++received;
  }
  barrier(world);
}

/// Runs all checks, and then `cases` of collectives over the whole group and over its halves. Collective; any number of
/// ranks.
inline void check_transport(group& world, const case_list& cases = {.count = 200}) {
  if (world.size() > 1) {
    check_message_order(world);
    check_receives_by_tag(world);
    if (world.abilities().any_source) {
      check_any_source(world);
      check_random_messages(world);
    }
    for (int tests_before = 0; tests_before < 4; ++tests_before) check_cancelled_receive(world, tests_before);
  }
  check_cases(cases, world);
  group half = world.split(world.rank() % 2);
  check_cases(cases, half);
}

}}}  // namespace muster::v0::testing

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
