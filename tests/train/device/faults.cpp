// A rank that dies during a step on devices, on the test double: the other ranks rebuild and continue.
#include <barrier>
#include <optional>

#include <muster/train/device/gradients.hpp>

#include "catch.hpp"
#include "model.hpp"
#include "train/heap.hpp"

using muster::device_arena;
using muster::nccl::communicator;

TEST_CASE(
    "a step in which a rank dies did not happen, and the survivors run it again with a new id, to the right bits") {
  constexpr std::uint64_t steps = 6;
  constexpr std::uint64_t dies_in = 4;
  for (const int ranks : {2, 3, 4}) {
    for (const std::size_t tensors_before : {std::size_t{0}, std::size_t{2}}) {
      CAPTURE(ranks, tensors_before);
      heap memory;
      muster::arena expected(memory, device_model::shapes());
      muster::sgd by_hand(expected, {.momentum = 0.9f});
      for (std::uint64_t step = 1; step <= steps; ++step) {
        const int alive = step < dies_in ? ranks : ranks - 1;
        if (device_model::all_samples(alive, step) == 0) continue;
        device_model::fill(expected, alive, step);
        by_hand.apply(0.05);
      }
      const auto again = std::make_shared<muster::thread_hub>(ranks - 1);
      std::barrier together(ranks);
      const auto thrown = devices::outcomes(ranks, [&](muster::group& world) {
        communicator all(world, {.timeout = devices::patience});
        const muster::device_stream stream;
        device_arena arena(device_model::shapes(), stream);
        muster::gradient_sync sync(muster::gradients_on(arena, all), {.bucket = 512, .first_bucket = 256});
        muster::device_sgd optimizer(arena, {.momentum = 0.9f});
        std::optional<muster::group> survivors;
        int failures = 0;
        for (std::uint64_t step = 1; step <= steps;) {
          if (device_model::all_samples(all.size(), step) == 0) {
            ++step;
            continue;
          }
          // Without this barrier a rank might detect the death in the previous step, which another rank has committed.
          // Sessions handle that case. A barrier of the group would not do: the failure of a rank that left it first
          // would end it.
          if (step == dies_in && failures == 0) together.arrive_and_wait();
          try {
            auto pass = sync.begin();
            if (step == dies_in && world.rank() == ranks - 1) {
              pass.add_samples(device_model::samples(all.rank(), step));
              for (std::size_t i = 0; i < tensors_before; ++i) pass.ready(device_model::shapes().size() - 1 - i);
              nccl_double::die_here(true);
              return;
            }
            device_model::backward(arena, pass, all.rank(), step);
            pass.wait();
            optimizer.apply(0.05);
            ++step;
          } catch (const muster::peer_failure&) {
            if (++failures > 1) throw;
            survivors.emplace(std::make_unique<muster::thread_transport>(again, world.rank()));
            all.rebuild(*survivors);
          }
        }
        muster::arena got(memory, device_model::shapes());
        arena.download(got, muster::deadline_after(devices::patience));
        if (failures != 1) throw std::runtime_error("the death was not seen once");
        if (!std::equal(got.parameters().begin(), got.parameters().end(), expected.parameters().begin()))
          throw std::runtime_error("the parameters are wrong");
      });
      for (const auto& failure : thrown) {
        if (failure) FAIL(muster::describe(failure));
      }
      CHECK(nccl_double::communicators() == 0);
      CHECK(nccl_double::allocated_bytes() == 0);
    }
  }
}
