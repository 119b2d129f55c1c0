// Frames between processes, whatever carries them.
#include "ps/runtime/link.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "jobs.hpp"

namespace {

// The bytes of the number-th message of a rank.
std::vector<std::byte> payload_of(int rank, std::uint64_t number, std::size_t size) {
  std::vector<std::byte> made(size);
  muster::random_stream draw(static_cast<std::uint64_t>(rank) * 1000003 + number);
  for (auto& byte : made) byte = static_cast<std::byte>(draw());
  return made;
}

}  // namespace

TEST_CASE("messages of all sizes arrive whole, small ones in their order") {
  constexpr int ranks = 3;
  constexpr std::uint64_t count = 120;
  constexpr std::size_t around = ps::detail::frame_link::frame_limit;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    test::run_ranks(over, ranks, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.introduce({.from = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      muster::random_stream draw(static_cast<std::uint64_t>(world.rank()) + 20261123);
      std::vector<std::uint64_t> heard(ranks, 0), last_small(ranks, 0);
      const auto hear = [&](std::span<const std::byte> frame, std::span<const std::byte> apart) {
        const auto head = ps::decode_head(frame);
        require(head.has_value() && head->to == 1, "a frame has the head that its sender gave it");
        ps::message_reader in(frame.subspan(ps::frame_head_bytes), apart);
        ps::message said;
        while (in.next(said)) {
          const auto from = static_cast<int>(head->from.at);
          const auto wanted = payload_of(from, said.number, said.count);
          require(std::ranges::equal(said.payload, wanted), "a payload is what was sent");
          ++heard[head->from.at];
          if (said.count > around / 2) continue;
          require(said.number > last_small[head->from.at], "small ones keep their order");
          last_small[head->from.at] = said.number;
        }
        require(in.whole(), "a frame ends where its last message does");
      };
      for (std::uint64_t number = 1; number <= count; ++number) {
        // Most are small; others lie about the size of a frame, or are of several.
        const std::size_t sizes[] = {draw.below(200), draw.below(200), around - 200 + draw.below(300),
                                     draw.below(5 * around)};
        const auto size = sizes[draw.below(4)];
        for (int to = 0; to < ranks; ++to) {
          if (to == world.rank()) continue;
          const auto payload = payload_of(world.rank(), number, size);
          link.send({static_cast<ps::node_id>(to), 1}, {.what = ps::message_kind::push,
                                                        .count = static_cast<std::uint32_t>(size),
                                                        .number = number,
                                                        .payload = payload});
        }
        if (draw.below(3) == 0) link.ship();
        (void)link.poll(hear);
      }
      link.ship();
      const auto until = muster::deadline_after(muster::seconds(60));
      while ((std::ranges::count(heard, count) < ranks - 1 || !link.is_idle()) && muster::clock::now() < until)
        (void)link.poll(hear);
      for (int from = 0; from < ranks; ++from)
        require(heard[static_cast<std::size_t>(from)] == (from == world.rank() ? 0 : count), "all have come");
      muster::barrier(world);
    });
  }
}

// The owner of what was lent has it back before it has gone, and writes something else there.
TEST_CASE("what was lent and given back goes on from a copy") {
  constexpr std::size_t size = 3 * ps::detail::frame_link::frame_limit + 100;
  constexpr std::uint64_t count = 40;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    test::run_ranks(over, 2, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.introduce({.from = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      muster::random_stream draw(static_cast<std::uint64_t>(over) + 20261124);
      const auto until = muster::deadline_after(muster::seconds(60));
      if (world.rank() == 0) {
        std::vector<std::vector<std::byte>> lent;
        for (std::uint64_t number = 1; number <= count; ++number) {
          lent.push_back(payload_of(0, number, size));
          link.send({1, 1}, {.what = ps::message_kind::push, .range = 7, .number = number, .payload = lent.back()},
                    true);
          for (auto turns = draw.below(4); turns > 0; --turns) (void)link.poll([](auto, auto) {});
          if (draw.below(4) != 0) continue;
          link.give_back(7, number);
          lent.clear();
        }
        link.give_back(7, count);
        lent.clear();
        while (!link.is_idle() && muster::clock::now() < until) (void)link.poll([](auto, auto) {});
        require(link.is_idle(), "all goes");
      } else {
        std::uint64_t heard = 0;
        while (heard < count && muster::clock::now() < until) {
          (void)link.poll([&](std::span<const std::byte> frame, std::span<const std::byte> apart) {
            ps::message_reader in(frame.subspan(ps::frame_head_bytes), apart);
            ps::message said;
            while (in.next(said)) {
              ++heard;
              require(said.number == heard, "large ones keep their order, too");
              require(std::ranges::equal(said.payload, payload_of(0, said.number, size)), "it is what was sent");
            }
          });
        }
        require(heard == count, "all come");
      }
      muster::barrier(world);
    });
  }
}

// Values come to the place that is named for them, until it is left.
TEST_CASE("a large payload is received in place, and no peer writes there after the receive was left") {
  constexpr std::size_t size = 5 * ps::detail::frame_link::frame_limit;
  constexpr std::uint64_t count = 30;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    test::run_ranks(over, 2, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.introduce({.from = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      const auto until = muster::deadline_after(muster::seconds(60));
      if (world.rank() == 0) {
        for (std::uint64_t number = 1; number <= count; ++number)
          link.send({1, 1},
                    {.what = ps::message_kind::values, .number = number, .payload = payload_of(0, number, size)});
        while (!link.is_idle() && muster::clock::now() < until) (void)link.poll([](auto, auto) {});
      } else {
        muster::random_stream draw(static_cast<std::uint64_t>(over) + 20261125);
        const bool places = world.transport().abilities().moves_buffers;
        std::vector<std::vector<std::byte>> room(count + 1, std::vector<std::byte>(size));
        link.place_by([&](const ps::message& what) -> std::byte* {
          require(what.bytes == size, "it is said how much comes");
          return what.number % 3 == 0 ? nullptr : room[what.number].data();
        });
        std::uint64_t heard = 0;
        while (heard < count && muster::clock::now() < until) {
          (void)link.poll([&](std::span<const std::byte> frame, std::span<const std::byte> apart) {
            ps::message_reader in(frame.subspan(ps::frame_head_bytes), apart);
            ps::message said;
            while (in.next(said)) {
              ++heard;
              auto& node_id = room[said.number];
              const bool left = node_id.empty();
              const bool there = said.payload.data() == node_id.data();
              require(there == (places && !left && said.number % 3 != 0), "it lies where it should");
              if (!left) require(std::ranges::equal(said.payload, payload_of(0, said.number, size)), "what was sent");
            }
          });
          if (heard < count && draw.below(40) == 0) {  // no receiver wants it any more: its memory goes
            link.leave(room[heard + 1].data());
            std::vector<std::byte>().swap(room[heard + 1]);
          }
        }
        require(heard == count, "all come");
      }
      muster::barrier(world);
    });
  }
}

TEST_CASE("no receiver sleeps while a frame has arrived") {
  constexpr int frames = 100;  // more than are looked at in a turn, and so few bytes that all fit on their way
  constexpr std::size_t size = 200;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    std::atomic<bool> all_sent{false};
    test::run_ranks(over, 2, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.introduce({.from = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      if (world.rank() == 1) {
        const auto payload = payload_of(1, 1, size);
        for (int i = 0; i < frames; ++i) {
          link.send({0, 1}, {.what = ps::message_kind::push, .count = size, .payload = payload});
          link.ship();
        }
        // Over some transports they are taken when the other looks.
        const auto wait = [&](double seconds) {
          const auto until = muster::deadline_after(muster::seconds(seconds));
          while (!link.is_idle() && muster::clock::now() < until) (void)link.poll([](auto, auto) {});
        };
        wait(0.2);
        all_sent = true;
        wait(60);
        muster::barrier(world);
        return;
      }
      while (!all_sent) std::this_thread::yield();
      int heard = 0, in_vain = 0;
      while (heard < frames && in_vain < 3) {
        (void)link.poll([&](auto, auto) { ++heard; });
        if (heard == frames) break;
        const auto until = muster::deadline_after(muster::seconds(5));
        link.pause(until);
        if (muster::clock::now() >= until) ++in_vain;
      }
      require(in_vain == 0, "frames were there, and nobody was woken");
      muster::barrier(world);
    });
  }
}
