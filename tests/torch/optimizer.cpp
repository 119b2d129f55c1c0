// The state of LibTorch's optimizers in checkpoints and after failed steps.
#include <muster/torch/optimizer.hpp>

#include <mutex>

#include <muster/core/error.hpp>
#include <muster/train/optimizers/schedule.hpp>

#include "../data/files.hpp"
#include "small_net.hpp"
#include "torch_catch.hpp"

using test::as_ranks;
using test::largest_difference;
using test::require;
using test::small_net;
using test::values_of;

namespace {

constexpr std::size_t samples = 60;

using optimizer_maker = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

const std::vector<std::pair<std::string, optimizer_maker>>& makers() {
  using namespace torch::optim;
  static const std::vector<std::pair<std::string, optimizer_maker>> all = {
      {"SGD",
       [](auto p) {
         return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.01));
       }},
      {"SGD without a momentum", [](auto p) { return std::make_unique<SGD>(p, 0.1); }},
      {"Adam", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.01).amsgrad(true)); }},
      {"AdamW", [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions(0.01)); }},
      {"RMSprop",
       [](auto p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).momentum(0.9).centered(true)); }},
      {"Adagrad",
       [](auto p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1).initial_accumulator_value(0.1)); }}};
  return all;
}

struct rank_training {
  rank_training(muster::context& context, const optimizer_maker& make)
      : loader(test::points(samples, 10)),
        net(std::make_shared<small_net>()),
        model(context, net),
        optimizer(make(net->parameters())),
        updater(muster::torch::state(*optimizer)),
        training(context, model, updater, loader) {}
  void run(const muster::train_options& options, bool deferred,
           const std::function<void(muster::training_step&)>& at_end = {}) {
    training.run(options, [&](muster::training_step& step) {
      auto [input, target] = muster::torch::tensors(step.next(loader));
      step.backward(model, torch::nll_loss(model->forward(input), target));
      if (deferred)
        step.update(updater);
      else
        step.update([&] { optimizer->step(); });
      if (at_end) at_end(step);
    });
  }
  muster::loader loader;
  std::shared_ptr<small_net> net;
  muster::torch::data_parallel<small_net> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  muster::torch::optimizer_state updater;
  muster::training training;
};

}  // namespace

TEST_CASE("every optimizer takes the steps that it takes alone, and resumes to the bit") {
  const auto& [name, make] = GENERATE(from_range(makers().begin(), makers().end()));
  const bool deferred = GENERATE(true, false);
  CAPTURE(name, deferred);
  const temporary_folder folder;
  small_net alone;
  const auto reference = make(alone.parameters());
  test::train_alone(alone, *reference, samples, 10, 3);
  std::vector<double> whole, parted;
  std::mutex mutex;
  const auto run = [&](std::vector<double>& ended, std::uint64_t epochs, const std::string& checkpoint) {
    as_ranks(2, [&](muster::context& context, muster::group& world) {
      rank_training rank(context, make);
      rank.run({.epochs = epochs, .checkpoint = checkpoint, .log = nullptr}, deferred);
      if (world.rank() == 0) ended = values_of(*rank.net);
    });
  };
  run(whole, 3, "");
  CHECK(largest_difference(whole, values_of(alone)) < 2e-4);
  run(parted, 1, folder / "saved");
  run(parted, 3, folder / "saved");
  CHECK(parted == whole);
}

TEST_CASE("a step that fails leaves the optimizer's values as they were") {
  const auto& [name, make] = GENERATE(from_range(makers().begin(), makers().end()));
  const bool deferred = GENERATE(true, false);
  CAPTURE(name, deferred);
  as_ranks(1, [&](muster::context& context, muster::group&) {
    rank_training rank(context, make);
    rank.run({.steps = 3, .log = nullptr}, deferred);
    const auto state_now = [&] {
      muster::state alone{rank.updater};
      return alone.parts().front().save();
    };
    const auto before = state_now();
    const auto parameters = values_of(*rank.net);
    try {
      rank.run({.steps = 6, .log = nullptr}, deferred,
               [](muster::training_step&) { throw std::runtime_error("a failure"); });
      require(false, "the step fails");
    } catch (const std::runtime_error&) {
    }
    require(state_now() == before, "the values of the optimizer");
    require(values_of(*rank.net) == parameters, "the parameters");
  });
}

TEST_CASE("a learning rate scales the rates of all groups") {
  as_ranks(1, [&](muster::context& context, muster::group&) {
    auto net = std::make_shared<small_net>();
    muster::torch::data_parallel model(context, net);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net->first->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5));
    groups.emplace_back(net->last->parameters(), std::make_unique<torch::optim::SGDOptions>(0.25));
    torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.5));
    auto updater = muster::torch::state(optimizer);
    updater.apply(0.1);
    require(updater.learning_rate() == 0.1, "the first group");
    require(std::abs(optimizer.param_groups()[1].options().get_lr() - 0.05) < 1e-12, "the second group");
    for (const double wrong : {-1.0, std::nan("")}) {
      try {
        updater.apply(wrong);
        require(false, "refused");
      } catch (const muster::configuration_error&) {
      }
    }
  });
}

TEST_CASE("optimizers whose state cannot be kept are refused") {
  as_ranks(1, [&](muster::context& context, muster::group&) {
    small_net net, other;
    muster::torch::data_parallel model(context, net);
    torch::optim::LBFGS lbfgs(net.parameters(), torch::optim::LBFGSOptions(1));
    CHECK_THROWS_WITH(muster::torch::state(lbfgs),
                      contains("LBFGS cannot be used (its step computes the loss several times"));
    torch::optim::SGD foreign(other.parameters(), 0.1);
    CHECK_THROWS_WITH(muster::torch::state(foreign), contains("no data_parallel of this rank has"));
    muster::torch::data_parallel second(context, other);
    std::vector<torch::Tensor> both = net.parameters();
    for (const auto& parameter : other.parameters()) both.push_back(parameter);
    torch::optim::SGD mixed(both, 0.1);
    CHECK_THROWS_WITH(muster::torch::state(mixed), contains("parameters of two data_parallel models"));
  });
}

TEST_CASE("servers apply the step of an optimizer, or refuse it") {
  as_ranks(1, [&](muster::context& context, muster::group&) {
    small_net net;
    muster::torch::data_parallel model(context, net);
    const auto update_of = [&](auto&& optimizer) { return muster::torch::state(optimizer).server_update(); };
    using namespace torch::optim;
    CHECK(update_of(SGD(net.parameters(), 0.1)) == "sgd:1");
    CHECK(update_of(SGD(net.parameters(), SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.5))) ==
          "nesterov:1,0.9,decay=0.5");
    CHECK(update_of(Adam(net.parameters(), AdamOptions(0.1))) == "adam:1");
    CHECK(update_of(AdamW(net.parameters(), AdamWOptions(0.1).weight_decay(0.25))) == "adamw:1,decay=0.25");
    CHECK(update_of(Adagrad(net.parameters(), AdagradOptions(0.1))) == "adagrad:1");
    CHECK_THROWS_WITH(update_of(RMSprop(net.parameters(), RMSpropOptions(0.1))),
                      contains("servers cannot apply RMSprop"));
    CHECK_THROWS_WITH(update_of(Adam(net.parameters(), AdamOptions(0.1).betas({0.5, 0.999}))),
                      contains("a first beta of 0.9, not 0.5"));
  });
}
