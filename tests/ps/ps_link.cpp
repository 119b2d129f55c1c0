// Frames between processes over every transport.
#include <muster/ps/runtime/ps_link.hpp>

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

// The bytes of a rank's message with that number.
std::vector<std::byte> payload_of(int rank, std::uint64_t number, std::size_t size) {
  std::vector<std::byte> bytes(size);
  muster::random_stream draw(static_cast<std::uint64_t>(rank) * 1000003 + number);
  for (auto& byte : bytes) byte = static_cast<std::byte>(draw());
  return bytes;
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
      link.set_identity({.sender = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      muster::random_stream draw(static_cast<std::uint64_t>(world.rank()) + 20261123);
      std::vector<std::uint64_t> received(ranks, 0), last_small(ranks, 0);
      const auto on_frame = [&](std::span<const std::byte> frame, std::span<const std::byte> payload) {
        const auto head = ps::decode_head(frame);
        require(head.has_value() && head->receiver_incarnation == 1, "a frame has the head that its sender gave it");
        ps::message_reader in(frame.subspan(ps::frame_head_bytes), payload);
        ps::message msg;
        while (in.next(msg)) {
          const auto sender = static_cast<int>(head->sender.place);
          const auto expected = payload_of(sender, msg.number, msg.count);
          require(std::ranges::equal(msg.payload, expected), "a payload is what was sent");
          ++received[head->sender.place];
          if (msg.count > around / 2) continue;
          require(msg.number > last_small[head->sender.place], "small ones keep their order");
          last_small[head->sender.place] = msg.number;
        }
        require(in.is_complete(), "a frame ends where its last message does");
      };
      for (std::uint64_t number = 1; number <= count; ++number) {
        // Most messages are small. Other messages are about as large as a frame, or several times as large.
        const std::size_t sizes[] = {draw.below(200), draw.below(200), around - 200 + draw.below(300),
                                     draw.below(5 * around)};
        const auto size = sizes[draw.below(4)];
        for (int receiver = 0; receiver < ranks; ++receiver) {
          if (receiver == world.rank()) continue;
          const auto payload = payload_of(world.rank(), number, size);
          link.send({static_cast<ps::node_id>(receiver), 1}, {.kind = ps::message_kind::push,
                                                              .count = static_cast<std::uint32_t>(size),
                                                              .number = number,
                                                              .payload = payload});
        }
        if (draw.below(3) == 0) link.flush();
        (void)link.poll(on_frame);
      }
      link.flush();
      const auto until = muster::deadline_after(muster::seconds(60));
      while ((std::ranges::count(received, count) < ranks - 1 || !link.is_idle()) && muster::clock::now() < until)
        (void)link.poll(on_frame);
      for (int sender = 0; sender < ranks; ++sender)
        require(received[static_cast<std::size_t>(sender)] == (sender == world.rank() ? 0 : count), "all have come");
      muster::barrier(world);
    });
  }
}

// The owner of borrowed memory gets the memory back before the transmission ends, and overwrites it.
TEST_CASE("what was lent and given back goes on from a copy") {
  constexpr std::size_t size = 3 * ps::detail::frame_link::frame_limit + 100;
  constexpr std::uint64_t count = 40;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    test::run_ranks(over, 2, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.set_identity({.sender = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      muster::random_stream draw(static_cast<std::uint64_t>(over) + 20261124);
      const auto until = muster::deadline_after(muster::seconds(60));
      if (world.rank() == 0) {
        std::vector<std::vector<std::byte>> borrowed;
        for (std::uint64_t number = 1; number <= count; ++number) {
          borrowed.push_back(payload_of(0, number, size));
          link.send({1, 1}, {.kind = ps::message_kind::push, .range = 7, .number = number, .payload = borrowed.back()},
                    true);
          for (auto turns = draw.below(4); turns > 0; --turns) (void)link.poll([](auto, auto) {});
          if (draw.below(4) != 0) continue;
          link.release(7, number);
          borrowed.clear();
        }
        link.release(7, count);
        borrowed.clear();
        while (!link.is_idle() && muster::clock::now() < until) (void)link.poll([](auto, auto) {});
        require(link.is_idle(), "all goes");
      } else {
        std::uint64_t received = 0;
        while (received < count && muster::clock::now() < until) {
          (void)link.poll([&](std::span<const std::byte> frame, std::span<const std::byte> payload) {
            ps::message_reader in(frame.subspan(ps::frame_head_bytes), payload);
            ps::message msg;
            while (in.next(msg)) {
              ++received;
              require(msg.number == received, "large ones keep their order, too");
              require(std::ranges::equal(msg.payload, payload_of(0, msg.number, size)), "it is what was sent");
            }
          });
        }
        require(received == count, "all come");
      }
      muster::barrier(world);
    });
  }
}

// Values are received into the given target until the target is abandoned.
TEST_CASE("a large payload is received in place, and no peer writes there after the receive was left") {
  constexpr std::size_t size = 5 * ps::detail::frame_link::frame_limit;
  constexpr std::uint64_t count = 30;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    test::run_ranks(over, 2, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.set_identity({.sender = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      const auto until = muster::deadline_after(muster::seconds(60));
      if (world.rank() == 0) {
        for (std::uint64_t number = 1; number <= count; ++number)
          link.send({1, 1},
                    {.kind = ps::message_kind::values, .number = number, .payload = payload_of(0, number, size)});
        while (!link.is_idle() && muster::clock::now() < until) (void)link.poll([](auto, auto) {});
      } else {
        muster::random_stream draw(static_cast<std::uint64_t>(over) + 20261125);
        const bool places = world.transport().abilities().replaces_buffers;
        std::vector<std::vector<std::byte>> targets(count + 1, std::vector<std::byte>(size));
        link.set_target_lookup([&](const ps::message& msg) -> std::byte* {
          require(msg.bytes == size, "it is said how much comes");
          return msg.number % 3 == 0 ? nullptr : targets[msg.number].data();
        });
        std::uint64_t received = 0;
        while (received < count && muster::clock::now() < until) {
          (void)link.poll([&](std::span<const std::byte> frame, std::span<const std::byte> payload) {
            ps::message_reader in(frame.subspan(ps::frame_head_bytes), payload);
            ps::message msg;
            while (in.next(msg)) {
              ++received;
              auto& target = targets[msg.number];
              const bool abandoned = target.empty();
              const bool in_place = msg.payload.data() == target.data();
              require(in_place == (places && !abandoned && msg.number % 3 != 0), "it lies where it should");
              if (!abandoned)
                require(std::ranges::equal(msg.payload, payload_of(0, msg.number, size)), "what was sent");
            }
          });
          // No receiver needs the values any more, and their memory is freed.
          if (received < count && draw.below(40) == 0) {
            link.abandon_target(targets[received + 1].data());
            std::vector<std::byte>().swap(targets[received + 1]);
          }
        }
        require(received == count, "all come");
      }
      muster::barrier(world);
    });
  }
}

TEST_CASE("no receiver sleeps while a frame has arrived") {
  constexpr int frames = 100;  // more than one poll processes, and small enough that all are in flight together
  constexpr std::size_t size = 200;
  for (const auto over : fabrics()) {
    CAPTURE(static_cast<int>(over));
    std::atomic<bool> all_sent{false};
    test::run_ranks(over, 2, [&](muster::group& world) {
      ps::detail::frame_link link(world.transport());
      link.set_identity({.sender = {static_cast<ps::node_id>(world.rank()), 1}, .map_version = 1});
      if (world.rank() == 1) {
        const auto payload = payload_of(1, 1, size);
        for (int i = 0; i < frames; ++i) {
          link.send({0, 1}, {.kind = ps::message_kind::push, .count = size, .payload = payload});
          link.flush();
        }
        // Some transports finish a send only when the receiver polls.
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
      int received = 0, in_vain = 0;
      while (received < frames && in_vain < 3) {
        (void)link.poll([&](auto, auto) { ++received; });
        if (received == frames) break;
        const auto until = muster::deadline_after(muster::seconds(5));
        link.pause(until);
        if (muster::clock::now() >= until) ++in_vain;
      }
      require(in_vain == 0, "frames were there, and nobody was woken");
      muster::barrier(world);
    });
  }
}
