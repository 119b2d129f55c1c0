// Trainings over gradients on a device, and what is their group's: its sums and its failures.
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

/// Small buckets, so that several are on their way at once.
muster::sync_options small_buckets(const muster::context& context) {
  auto how = muster::training::sync_of_job(context);
  how.bucket = 16u << 10;
  how.first_bucket = 2048;
  return how;
}

struct data_of_rank {
  muster::dataset data = test::numbers(60);
  muster::loader loader{data | muster::shuffle(3) | muster::batch(7)};
};

/// Parameters after some epochs, at every rank the same.
std::vector<float> trained_on_host(int ranks, const std::string& optimizer) {
  std::vector<float> made;
  test::as_ranks(ranks, [&](muster::context& context, muster::group& world) {
    data_of_rank own;
    test::quadratic model;
    muster::arena arena(context, test::quadratic::shapes());
    auto by = muster::make_optimizer(arena, optimizer);
    muster::training training(context, small_buckets(context), arena, by, own.loader);
    training.run({.epochs = 3, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(own.loader), [&](const auto& part, auto& pass) { model.backward(arena, part, pass); });
      step.update(by, 0.05);
    });
    if (world.rank() == 0) made.assign(arena.parameters().begin(), arena.parameters().end());
  });
  return made;
}

std::vector<float> trained_on_device(const device_model::setting& how, const std::string& optimizer) {
  std::vector<std::vector<float>> made(static_cast<std::size_t>(how.ranks));
  test::as_ranks(how.ranks, [&](muster::context& context, muster::group& world) {
    muster::use_device(world.rank() % muster::device_count());
    std::optional<muster::nccl::communicator> devices;
    const muster::device_stream stream;
    data_of_rank own;
    test::quadratic model(stream);
    device_arena arena(test::quadratic::shapes(), stream);
    auto by = muster::make_optimizer(arena, optimizer);
    muster::group self(muster::make_self_transport());
    if (how.by_nccl) devices.emplace(self);
    muster::training training(context, small_buckets(context),
                              devices ? muster::gradients_on(arena, *devices) : muster::gradients_on(arena), by,
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
      step.update(by, 0.05);
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
    made[static_cast<std::size_t>(world.rank())] = test::on_host(arena);
  });
  for (const auto& one : made) CHECK(one == made[0]);
  return made[0];
}

}  // namespace

TEST_CASE("a training over gradients on a device is that of the host, with a step that is run again") {
  MUSTER_NEEDS_DEVICE();
  for (const std::string optimizer : {"nesterov:0.9,decay=1e-3", "adamw,decay=0.01,decay-of=weights"}) {
    for (const auto& how : device_model::settings()) {
      CAPTURE(optimizer, how.by_nccl, how.ranks);
      const auto expected = trained_on_host(how.ranks, optimizer);
      const auto got = trained_on_device(how, optimizer);
      REQUIRE(got.size() == expected.size());
      if (!how.by_nccl) CHECK(got == expected);  // the same allreduces, and so the same bits
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
    std::string said = "nothing";
    test::as_ranks(
        2,
        [&](muster::context& context, muster::group& world) {
          muster::use_device(world.rank() % muster::device_count());
          const muster::device_stream stream;
          device_arena arena(test::quadratic::shapes(), stream);
          data_of_rank own;
          muster::device_sgd by(arena);
          try {
            muster::training training(context, muster::gradients_on(arena), by, own.loader);
            if (run) run(training, own);
          } catch (const muster::configuration_error& error) {
            if (world.rank() == 0) said = error.what();
          }
        },
        flags);
    CHECK_THAT(said, contains(why));
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
  CHECK_THROWS_WITH(sync.begin(), contains("the group that sums its gradients is not known"));
}

TEST_CASE("a rank that gives up amid a step on a device is named, and the others run the step again") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : {2, 3, 4}) {
    for (const std::size_t tensors_before : {std::size_t{0}, std::size_t{3}}) {
      CAPTURE(ranks, tensors_before);
      const auto again = std::make_shared<muster::local_hub>(ranks - 1);
      std::barrier together(ranks);
      device_model::run({false, ranks}, [&](const device_model::rank& here) {
        device_arena arena(device_model::shapes(), here.stream);
        muster::gradient_sync sync(muster::gradients_on(arena), {.bucket = 512, .first_bucket = 256});
        const auto step = [&](muster::group& among) {
          auto pass = sync.begin(among);
          device_model::backward(arena, pass, among.rank(), 2);
          pass.wait();
        };
        step(here.world);
        together.arrive_and_wait();  // not a barrier of the group: a rank that has left it could end it at another
        if (here.number() == ranks - 1) {
          auto pass = sync.begin(here.world);
          pass.add_samples(1);
          for (std::size_t i = 0; i < tensors_before; ++i) pass.ready(device_model::shapes().size() - 1 - i);
          here.world.abort("the disk is full", 3);
          return;
        }
        std::string said = "nothing";
        try {
          step(here.world);
        } catch (const muster::peer_failure& error) {
          said = error.what();
        }
        if (said.find("(the disk is full)") == std::string::npos) throw std::runtime_error("it says " + said);
        muster::group left(std::make_unique<muster::local_transport>(again, here.number()));
        step(left);
        for (std::size_t tensor = 0; tensor < device_model::shapes().size(); ++tensor) {
          require(devices::on_host(arena.gradient(tensor), here.stream) == device_model::reduced(tensor, ranks - 1, 2),
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
    const auto tell = [&](std::latch* gone) { gone->count_down(); };
    std::unique_ptr<std::latch, decltype(tell)> at_end(world.rank() == 0 ? &is_gone : nullptr, tell);
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
    is_gone.wait();  // what the other rank of this process frees before that waits for the kernel, too
    muster::group alone(muster::make_self_transport());
    step(alone);
    require(devices::on_host(arena.gradient(0), stream) == device_model::reduced(0, 1, 2), "and it goes on");
  });
  for (const auto& one : thrown) {
    if (one) FAIL(muster::describe(one));
  }
}
