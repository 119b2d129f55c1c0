#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <muster/core/device/kernels.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/device/device_arena.hpp>
#include <muster/train/device/gradients.hpp>

#include "catch.hpp"
#include "model.hpp"
#include "train/heap.hpp"

#ifdef MUSTER_TEST_DOUBLE
#include <cuda_runtime_api.h>
#endif

using muster::device_arena;

#define STEP_CHECK(condition) \
  if (!(condition)) throw std::runtime_error("rank " + std::to_string(self.number()) + ": " #condition)

namespace {

bool is_zero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0.0f; });
}

}  // namespace

TEST_CASE("gradients on devices become those of the whole batch, in whatever buckets and form they travel") {
  MUSTER_NEEDS_DEVICE();
  for (const auto& setting : device_model::settings()) {
    const int ranks = setting.ranks;
    for (const auto send_as : {muster::dtype::float32, muster::dtype::float16, muster::dtype::bfloat16}) {
      for (const std::size_t bucket : {std::size_t{64}, std::size_t{2048}, std::size_t{1} << 20}) {
        device_model::run(setting, [&](const device_model::rank& self) {
          device_arena arena(device_model::shapes(), self.stream);
          muster::gradient_sync sync(self.gradients_on(arena, send_as), {.bucket = bucket, .first_bucket = bucket / 2});
          STEP_CHECK(bucket > 4096 || sync.buckets().size() > 1);
          for (std::uint64_t step = 1; step < 4; ++step) {
            if (device_model::all_samples(ranks, step) == 0) continue;
            auto pass = self.begin(sync);
            device_model::backward(arena, pass, self.number(), step);
            pass.wait();
            STEP_CHECK(pass.samples() == device_model::all_samples(ranks, step));
            for (std::size_t tensor = 0; tensor < device_model::shapes().size(); ++tensor)
              STEP_CHECK(devices::on_host(arena.gradient(tensor), self.stream) ==
                         device_model::reduced(tensor, ranks, step));
            const std::size_t bytes = arena.gradients().size() * (send_as == muster::dtype::float32 ? 4 : 2);
            if (!setting.by_nccl && ranks == 1) continue;  // a single rank sends nothing
            STEP_CHECK(sync.bytes_sent() >= bytes && sync.bytes_sent() <= bytes + 64);
          }
        });
      }
    }
  }
}

TEST_CASE("a bucket leaves behind what its gradients wait for on the stream of the arena") {
  MUSTER_NEEDS_DEVICE();
  for (const auto& setting : device_model::settings()) {
    const int ranks = setting.ranks;
    device_model::run(setting, [&](const device_model::rank& self) {
      device_arena arena(device_model::shapes(), self.stream);
      muster::gradient_sync sync(self.gradients_on(arena), {.bucket = 64, .first_bucket = 64});
      auto pass = self.begin(sync);
      pass.add_samples(2);
      for (std::size_t tensor = device_model::shapes().size(); tensor-- > 0;) {
#ifdef MUSTER_TEST_DOUBLE  // a kernel takes no time on the double
        const auto late = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
        if (self.number() < 2) STEP_CHECK(cudaLaunchHostFunc(self.stream.handle, late, nullptr) == cudaSuccess);
#endif
        muster::fill(arena.gradient(tensor), static_cast<float>(self.number() + 1), self.stream);
        pass.ready(tensor);
        muster::barrier(self.world);  // the model's own collectives keep their order, whichever rank is late
      }
      pass.wait();
      for (std::size_t tensor = 0; tensor < device_model::shapes().size(); ++tensor) {
        const auto values = devices::on_host(arena.gradient(tensor), self.stream);
        STEP_CHECK(
            std::ranges::all_of(values, [&](float value) { return value == static_cast<float>(ranks + 1) / 4; }));
      }
    });
  }
}

TEST_CASE("a gradient that was not written counts as zeros, and a large norm is clipped") {
  MUSTER_NEEDS_DEVICE();
  for (const auto& setting : device_model::settings()) {
    device_model::run(setting, [&](const device_model::rank& self) {
      device_arena arena(device_model::shapes(), self.stream);
      muster::gradient_sync sync(self.gradients_on(arena), {.bucket = 512, .clip = 0.5f});
      muster::fill(arena.gradient(0), 3.0f, self.stream);  // from a previous step
      auto pass = self.begin(sync);
      pass.add_samples(1);
      const auto values = std::vector<float>(10, 2.0f);
      muster::copy(std::span<const float>(values), arena.gradient(4), self.stream);
      pass.ready(4);
      pass.wait();
      const double norm = std::sqrt(10 * 4.0);
      STEP_CHECK(std::abs(pass.norm() - norm) < 1e-6);
      STEP_CHECK(is_zero(devices::on_host(arena.gradient(0), self.stream)));
      for (const float value : devices::on_host(arena.gradient(4), self.stream))
        STEP_CHECK(std::abs(static_cast<double>(value) - 2.0 * 0.5 / norm) < 1e-6);
    });
  }
}

TEST_CASE("a training on devices has the parameters of one on the host, to the bit, as a session runs it") {
  MUSTER_NEEDS_DEVICE();
  constexpr std::uint64_t steps = 5;
  for (const auto& setting : device_model::settings()) {
    const int ranks = setting.ranks;
    for (const bool by_adam : {false, true}) {
      const muster::sgd_step<float> momentum{.momentum = 0.9f, .decay = 1e-3f};
      const muster::adam_step<float> decoupled{.decay = 1e-2};
      heap memory;
      muster::arena host(memory, device_model::shapes());
      std::fill(host.parameters().begin(), host.parameters().end(), 0.25f);
      {
        auto optimizer = by_adam ? muster::any_optimizer(muster::adam(host, decoupled, muster::is_matrix))
                                 : muster::any_optimizer(muster::sgd(host, momentum, muster::is_matrix));
        for (std::uint64_t step = 1; step <= steps; ++step) {
          if (device_model::all_samples(ranks, step) > 0) device_model::fill(host, ranks, step);
          optimizer.apply(0.05);
        }
      }
      device_model::run(setting, [&](const device_model::rank& self) {
        heap own;
        muster::arena start(own, device_model::shapes());
        std::fill(start.parameters().begin(), start.parameters().end(), 0.25f);
        device_arena arena(device_model::shapes(), self.stream);
        arena.upload(start, muster::deadline_after(devices::patience));
        muster::gradient_sync sync(self.gradients_on(arena), {.bucket = 1024});
        auto optimizer = by_adam ? muster::any_optimizer(muster::device_adam(arena, decoupled, muster::is_matrix))
                                 : muster::any_optimizer(muster::device_sgd(arena, momentum, muster::is_matrix));
        muster::state state{arena, optimizer};
        auto session = muster::fixed_session(self.world);
        session.run(state,
                    [&](muster::step& current) {
                      const std::uint64_t step = current.number() + 1;
                      if (device_model::all_samples(ranks, step) > 0) {
                        auto pass = self.begin(sync);
                        device_model::backward(arena, pass, self.number(), step);
                        pass.wait();
                      }
                      optimizer.apply(0.05);
                    },
                    {.steps = steps});
        arena.download(start, muster::deadline_after(devices::patience));
        STEP_CHECK(std::equal(start.parameters().begin(), start.parameters().end(), host.parameters().begin()));
        (void)state.digest();  // saves and hashes every part
      });
    }
  }
}

TEST_CASE("the state of a device's arena goes to bytes and comes back") {
  MUSTER_NEEDS_DEVICE();
  const muster::device_stream stream;
  device_arena arena(device_model::shapes(), stream);
  muster::fill(arena.state("velocity"), 2.0f, stream);
  muster::fill(arena.parameters(), 1.0f, stream);
  muster::state state{arena};
  REQUIRE(state.parts().size() == 3);  // the tensors' description, and their arrays
  const auto before = state.digest();
  std::vector<std::vector<std::byte>> saved;
  for (const auto& part : state.parts()) saved.push_back(part.save());
  muster::fill(arena.parameters(), 7.0f, stream);
  CHECK(state.digest() != before);
  for (std::size_t i = 0; i < saved.size(); ++i) state.parts()[i].load(saved[i]);
  CHECK(state.digest() == before);
  saved[1].pop_back();
  CHECK_THROWS_WITH(state.parts()[1].load(saved[1]), contains("parameters cannot be restored"));
  CHECK(state.digest() == before);
}

TEST_CASE("a pass on a device that is used wrongly says so") {
  MUSTER_NEEDS_DEVICE();
  device_model::run({true, 1}, [](const device_model::rank& self) {
    device_arena arena(device_model::shapes(), self.stream);
    const auto refused = [](const std::function<void()>& call, const std::string& part) {
      try {
        call();
      } catch (const muster::configuration_error& why) {
        return std::string(why.what()).find(part) != std::string::npos;
      }
      return false;
    };
    STEP_CHECK(refused([&] { (void)self.gradients_on(arena, muster::dtype::int32); }, "sent as int32"));
    STEP_CHECK(refused([&] { muster::gradient_sync(self.gradients_on(arena), {.clip = -1}); }, "clipped"));
    STEP_CHECK(refused([&] { muster::device_sgd(arena, {.nesterov = true}); }, "Nesterov"));
    STEP_CHECK(refused([&] { muster::device_adam(arena, {.beta1 = 2}); }, "beta1"));
    muster::gradient_sync sync(self.gradients_on(arena), {.bucket = 64, .first_bucket = 64});
    {
      auto pass = sync.begin();
      STEP_CHECK(refused([&] { auto second = sync.begin(); }, "unfinished"));
      pass.ready(4);
      STEP_CHECK(refused([&] { pass.ready(4); }, "written more often"));
      STEP_CHECK(refused([&] { pass.ready(99); }, "no tensor has index 99"));
      STEP_CHECK(refused([&] { pass.add_samples(1); }, "too late"));
      STEP_CHECK(refused([&] { pass.wait(); }, "no sample was counted"));
    }
    auto pass = sync.begin();  // training continues
    pass.add_samples(1);
    pass.ready(4);
    pass.wait();
  });
}
