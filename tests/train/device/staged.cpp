// Trainings over gradients on a device that a group sums, and failures of the group.
#include <muster/train/training.hpp>

#include <barrier>
#include <cmath>
#include <latch>
#include <memory>
#include <optional>

#include <muster/core/device/kernels.hpp>

#include "catch.hpp"
#include "core/device/endless_kernel.hpp"
#include "model.hpp"
#include "quadratic.hpp"
#include "train/trained.hpp"

using muster::device_arena;
using test::require;

namespace {

/// Returns options with small buckets, so that several buckets are in flight at the same time.
muster::sync_options small_buckets(const muster::context& context) {
  auto options = muster::training::sync_of_job(context);
  options.bucket = 16u << 10;
  options.first_bucket = 2048;
  return options;
}

struct data_of_rank {
  muster::dataset data = test::numbers(60);
  muster::loader loader{data | muster::shuffle(3) | muster::batch(7)};
};

/// Returns the parameters after some epochs, the same at every rank.
std::vector<float> trained_on_host(int ranks, const std::string& optimizer) {
  std::vector<float> parameters;
  test::as_ranks(ranks, [&](muster::context& context, muster::group& world) {
    data_of_rank own;
    test::quadratic model;
    muster::arena arena(context, test::quadratic::shapes());
    auto updater = muster::make_optimizer(arena, optimizer);
    muster::training training(context, small_buckets(context), arena, updater, own.loader);
    training.run({.epochs = 3, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(own.loader), [&](const auto& part, auto& pass) { model.backward(arena, part, pass); });
      step.update(updater, 0.05);
    });
    if (world.rank() == 0) parameters.assign(arena.parameters().begin(), arena.parameters().end());
  });
  return parameters;
}

std::vector<float> trained_on_device(const device_model::setting& chosen, const std::string& optimizer) {
  std::vector<std::vector<float>> parameters(static_cast<std::size_t>(chosen.ranks));
  test::as_ranks(chosen.ranks, [&](muster::context& context, muster::group& world) {
    muster::use_device(world.rank() % muster::device_count());
    std::optional<muster::nccl::communicator> devices;
    const muster::device_stream stream;
    data_of_rank own;
    test::quadratic model(stream);
    device_arena arena(test::quadratic::shapes(), stream);
    auto updater = muster::make_optimizer(arena, optimizer);
    muster::group self(muster::make_self_transport());
    if (chosen.by_nccl) devices.emplace(self);
    muster::training training(context, small_buckets(context),
                              devices ? muster::gradients_on(arena, *devices) : muster::gradients_on(arena), updater,
                              own.loader);
    int calls = 0;
    const muster::train_options options{.epochs = 3,
                                        .each_group =
                                            [&](muster::group& ranks, bool) {
                                              if (devices) devices->rebuild(ranks);
                                            },
                                        .log = nullptr};
    const auto step_of = [&](muster::training_step& step) {
      step.backward(step.next(own.loader), [&](const auto& part, auto& pass) { model.backward(arena, part, pass); });
      step.update(updater, 0.05);
      if (++calls == 5) throw std::runtime_error("the user's own");
    };
    try {
      training.run(options, step_of);
      require(false, "the fifth step fails");
    } catch (const std::runtime_error&) {
    }
    require(training.state().steps() == 4, "four steps have committed");
    training.run(options, step_of);
    require(calls == 28 && training.epochs().at(2).samples == 60, "each sample counts once an epoch");
    parameters[static_cast<std::size_t>(world.rank())] = test::on_host(arena);
  });
  for (const auto& rank_parameters : parameters) CHECK(rank_parameters == parameters[0]);
  return parameters[0];
}

}  // namespace

TEST_CASE("a training over gradients on a device is that of the host, with a step that is run again") {
  MUSTER_NEEDS_DEVICE();
  for (const std::string optimizer : {"nesterov:0.9,decay=1e-3", "adamw,decay=0.01,decay-of=weights"}) {
    for (const auto& chosen : device_model::settings()) {
      CAPTURE(optimizer, chosen.by_nccl, chosen.ranks);
      const auto expected = trained_on_host(chosen.ranks, optimizer);
      const auto got = trained_on_device(chosen, optimizer);
      REQUIRE(got.size() == expected.size());
      if (!chosen.by_nccl) CHECK(got == expected);  // the same allreduces, and therefore the same bits
      double difference = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        difference = std::max(difference, std::abs(static_cast<double>(got[i] - expected[i])));
      CHECK(difference < 1e-4);
    }
  }
}

TEST_CASE("what a device has no form of is refused") {
  MUSTER_NEEDS_DEVICE();
  const auto refused = [](const std::string& why, const std::vector<std::string>& flags,
                          const std::function<void(muster::training&, data_of_rank&)>& run = {}) {
    CAPTURE(why);
    std::string message = "nothing";
    test::as_ranks(
        2,
        [&](muster::context& context, muster::group& world) {
          muster::use_device(world.rank() % muster::device_count());
          const muster::device_stream stream;
          device_arena arena(test::quadratic::shapes(), stream);
          data_of_rank own;
          muster::device_sgd updater(arena);
          try {
            muster::training training(context, muster::gradients_on(arena), updater, own.loader);
            if (run) run(training, own);
          } catch (const muster::configuration_error& error) {
            if (world.rank() == 0) message = error.what();
          }
        },
        flags);
    CHECK_THAT(message, contains(why));
  };
  refused("mode ps cannot be used (the parameters are on a device)", {"--mode", "ps"});
  refused("these are on a device", {"--mode", "local-sgd:4"});
  refused("these are on a device", {"--virtual-shards", "4"});
  refused("these are on a device", {"--compress", "float16"});
  refused("a function cannot update parameters (the parameters are on a device)", {}, [](auto& training, auto& own) {
    training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
      (void)step.next(own.loader);
      step.update([] {});
    });
  });
  const muster::device_stream stream;
  device_arena arena(test::quadratic::shapes(), stream);
  CHECK_THROWS_WITH(muster::make_optimizer(arena, "lars:0.9"), contains("'lars:0.9' cannot be used (devices have no"));
  CHECK_THROWS_WITH(muster::make_optimizer(arena, "adagrad"), contains("'adagrad' cannot be used (devices have no"));
  CHECK_THROWS_WITH(muster::make_optimizer(arena, "sdg"), contains("sdg"));
  muster::gradient_sync sync(muster::gradients_on(arena));
  CHECK_THROWS_WITH(sync.begin(), contains("the group that sums its gradients is unknown"));
}

TEST_CASE("a rank that gives up amid a step on a device is named, and the others run the step again") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : {2, 3, 4}) {
    for (const std::size_t tensors_before : {std::size_t{0}, std::size_t{3}}) {
      CAPTURE(ranks, tensors_before);
      const auto again = std::make_shared<muster::thread_hub>(ranks - 1);
      std::barrier together(ranks);
      device_model::run({false, ranks}, [&](const device_model::rank& self) {
        device_arena arena(device_model::shapes(), self.stream);
        muster::gradient_sync sync(muster::gradients_on(arena), {.bucket = 512, .first_bucket = 256});
        const auto step = [&](muster::group& among) {
          auto pass = sync.begin(among);
          device_model::backward(arena, pass, among.rank(), 2);
          pass.wait();
        };
        step(self.world);
        together.arrive_and_wait();  // not a barrier of the group: a rank that has left it could end it at another rank
        if (self.number() == ranks - 1) {
          auto pass = sync.begin(self.world);
          pass.add_samples(1);
          for (std::size_t i = 0; i < tensors_before; ++i) pass.ready(device_model::shapes().size() - 1 - i);
          self.world.abort("the disk is full", 3);
          return;
        }
        std::string message = "nothing";
        try {
          step(self.world);
        } catch (const muster::peer_failure& error) {
          message = error.what();
        }
        if (message.find("(the disk is full)") == std::string::npos) throw std::runtime_error("it says " + message);
        muster::group survivors(std::make_unique<muster::thread_transport>(again, self.number()));
        step(survivors);
        for (std::size_t tensor = 0; tensor < device_model::shapes().size(); ++tensor) {
          require(devices::on_host(arena.gradient(tensor), self.stream) == device_model::reduced(tensor, ranks - 1, 2),
                  "the sums of those that are left");
        }
      });
    }
  }
}

TEST_CASE("a kernel that never ends amid a backward pass is an error at the group's deadline, at every rank") {
  MUSTER_NEEDS_DEVICE();
  std::latch is_gone(1);
  const auto thrown = devices::outcomes(2, [&](muster::group& world) {
    const muster::device_stream stream;
    device_arena arena(device_model::shapes(), stream);
    muster::gradient_sync sync(muster::gradients_on(arena), {.bucket = 512, .first_bucket = 256});
    const auto step = [&](muster::group& among) {
      auto pass = sync.begin(among);
      device_model::backward(arena, pass, among.rank(), 2);
      pass.wait();
    };
    step(world);
    const auto count_down = [&](std::latch* latch) { latch->count_down(); };
    std::unique_ptr<std::latch, decltype(count_down)> at_end(world.rank() == 0 ? &is_gone : nullptr, count_down);
    std::optional<test::endless_kernel> kernel;
    world.set_settings({.timeout = muster::seconds(1)});
    muster::group soon = world.duplicate();
    if (world.rank() == 0) kernel.emplace(stream);
    try {
      auto pass = sync.begin(soon);
      pass.add_samples(1);
      for (std::size_t tensor = device_model::shapes().size(); tensor-- > 0;) pass.ready(tensor);
      pass.wait();
      throw std::runtime_error("the step ended well");
    } catch (const muster::timeout_error&) {
    } catch (const muster::peer_failure&) {
      require(world.rank() == 1, "it is this rank's device");
    }
    if (kernel) {
      require(kernel->runs(), "while the kernel runs");
      kernel->end();
      at_end.reset();
    }
    is_gone.wait();  // the other rank frees memory before that, which waits for the kernel, too
    muster::group alone(muster::make_self_transport());
    step(alone);
    require(devices::on_host(arena.gradient(0), stream) == device_model::reduced(0, 1, 2), "and it goes on");
  });
  for (const auto& failure : thrown) {
    if (failure) FAIL(muster::describe(failure));
  }
}
