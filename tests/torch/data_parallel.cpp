// Modules of LibTorch that ranks train together.
#include <muster/torch/data_parallel.hpp>

#include <mutex>
#include <set>

#include <muster/core/error.hpp>

#include "small_net.hpp"
#include "torch_catch.hpp"

using test::as_ranks;
using test::largest_difference;
using test::require;
using test::small_net;
using test::values_of;

namespace {

constexpr std::size_t points_in_all = 100;

// Trains a small_net on ranks and returns its values, which are equal at all ranks.
template <class Step>
std::vector<double> train(int ranks, std::uint64_t batch, const Step& step_of,
                          const muster::torch::data_parallel_options& options = {}) {
  std::vector<double> ended;
  std::mutex mutex;
  as_ranks(ranks, [&](muster::context& context, muster::group& world) {
    auto loader = test::points(points_in_all, batch);
    auto net = std::make_shared<small_net>(world.rank());  // only rank 0's values count
    muster::torch::data_parallel model(context, net, options);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto updater = muster::torch::state(optimizer);
    muster::training training(context, model, updater, loader);
    training.run({.epochs = 2, .log = nullptr}, [&](muster::training_step& step) {
      step_of(step, loader, model);
      step.update(updater);
    });
    const std::lock_guard lock(mutex);
    if (ended.empty()) ended = values_of(*net);
    require(ended == values_of(*net), "all ranks have the same bits");
  });
  return ended;
}

template <class Model>
void whole_batch(muster::training_step& step, muster::loader& loader, Model& model) {
  auto [input, target] = muster::torch::tensors(step.next(loader));
  step.backward(model, torch::nll_loss(model->forward(input), target));
}

std::vector<double> reference(std::uint64_t batch) {
  small_net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  test::train_alone(net, optimizer, points_in_all, batch, 2);
  return values_of(net);
}

}  // namespace

TEST_CASE("ranks train the model that one process trains on the same global batches") {
  const int ranks = GENERATE(1, 2, 3, 4);
  const std::uint64_t batch = GENERATE(1, 10, 32);  // 100 samples: uneven parts, ranks without samples
  CAPTURE(ranks, batch);
  const auto ended =
      train(ranks, batch, [](auto& step, auto& loader, auto& model) { whole_batch(step, loader, model); });
  CHECK(largest_difference(ended, reference(batch)) < 1e-5);
}

TEST_CASE("a step may be cut into micro-batches") {
  const int ranks = GENERATE(1, 2);
  const auto ended = train(ranks, 10, [](muster::training_step& step, auto& loader, auto& model) {
    step.backward(step.next(loader).split(3), [&](const auto& part, auto& pass) {
      auto [input, target] = muster::torch::tensors(part);
      model.backward(pass, part, torch::nll_loss(model->forward(input), target));
    });
  });
  CHECK(largest_difference(ended, reference(10)) < 1e-5);
}

TEST_CASE("a loss may be a sum over the samples") {
  const auto ended = train(2, 10, [](muster::training_step& step, auto& loader, auto& model) {
    auto [input, target] = muster::torch::tensors(step.next(loader));
    const auto loss = torch::nll_loss(model->forward(input), target, {}, torch::Reduction::Sum);
    step.backward(model, loss, muster::torch::loss_reduction::sum);
  });
  CHECK(largest_difference(ended, reference(10)) < 1e-5);
}

TEST_CASE("habits of LibTorch's loops do no harm") {
  const auto ended = train(2, 10, [](muster::training_step& step, auto& loader, auto& model) {
    auto [input, target] = muster::torch::tensors(step.next(loader));
    const auto loss = torch::nll_loss(model->forward(input), target);
    model->zero_grad();  // sets .grad to none, or fills it with zeros
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);  // left over
    step.backward(model, loss);
    for (const auto& parameter : model->parameters()) {
      const auto* const at = parameter.grad().template data_ptr<float>();
      const auto all = model.arena().gradients();
      require(at >= all.data() && at < all.data() + all.size(), "gradients are views of the arena");
    }
  });
  CHECK(largest_difference(ended, reference(10)) < 1e-5);
}

TEST_CASE("buckets leave while the backward pass goes on") {
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    auto loader = test::points(points_in_all, 10);
    torch::nn::Sequential net;
    for (int k = 0; k < 6; ++k) net->push_back(torch::nn::Linear(k == 0 ? 4 : 64, 64));
    muster::torch::data_parallel model(context, net);
    auto options = muster::training::sync_of_job(context);
    options.bucket = options.first_bucket = 1024;
    muster::sgd optimizer(model.arena());
    muster::training training(context, options, model, optimizer, loader);
    training.run({.steps = 3, .log = nullptr}, [&](muster::training_step& step) {
      auto [input, target] = muster::torch::tensors(step.next(loader));
      std::uint64_t before = 0, at_first_layer = 0;
      const auto first = net[0]->as<torch::nn::Linear>()->forward(input);
      first.register_hook([&](const torch::Tensor&) { at_first_layer = step.group().sequence(); });
      auto output = first;
      for (std::size_t k = 1; k < 6; ++k) output = net[k]->as<torch::nn::Linear>()->forward(output);
      before = step.group().sequence();
      step.backward(model, torch::nll_loss(torch::log_softmax(output, 1), target));
      step.update(optimizer, 0.1);
      require(at_first_layer >= before + 5, "the last five layers are on their way when the first is reached");
      require(world.size() == 2, "two ranks");
    });
  });
}

TEST_CASE("the backward pass of a trial fixes the order of the buckets, and leaves no trace") {
  struct reversed_net : torch::nn::Module {  // registers its layers from the last to the first
    reversed_net() {
      last = register_module("last", torch::nn::Linear(8, 3));
      norm = register_module("norm", torch::nn::BatchNorm1d(8));
      first = register_module("first", torch::nn::Linear(4, 8));
      unused = register_parameter("unused", torch::ones({2}));
    }
    torch::Tensor forward(const torch::Tensor& input) {
      return torch::log_softmax(last(torch::dropout(norm(first(input)), 0.5, true)), 1);
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
    torch::Tensor unused;
  };
  as_ranks(1, [&](muster::context& context, muster::group&) {
    reversed_net net;
    const auto before = muster::torch::detail::state_of_generator();
    muster::torch::data_parallel model(context, net, {.trial = [&] { return net.forward(torch::ones({5, 4})).sum(); }});
    require(torch::equal(before, muster::torch::detail::state_of_generator()), "the generator is as before");
    require(net.norm->num_batches_tracked.item<std::int64_t>() == 0 && net.norm->running_mean.sum().item<float>() == 0,
            "the buffers are as before");
    std::vector<std::string> names;
    for (const auto& shape : model.arena().shapes()) names.push_back(shape.name.substr(0, shape.name.find('.')));
    require(names == std::vector<std::string>{"unused", "first", "first", "norm", "norm", "last", "last"},
            "the order of execution");
  });
}

TEST_CASE("shared, frozen and unused parameters, and parameters of several names") {
  struct odd_net : torch::nn::Module {
    odd_net() {
      used = register_module("used", torch::nn::Linear(4, 3));
      register_module("again", used);
      frozen = register_parameter("frozen", torch::full({3}, 0.25f), false);
      unused = register_parameter("unused", torch::full({5}, 2.0f));
    }
    torch::Tensor forward(const torch::Tensor& input) { return torch::log_softmax(used(input) + frozen, 1); }
    torch::nn::Linear used{nullptr};
    torch::Tensor frozen, unused;
  };
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    auto loader = test::points(points_in_all, 10);
    odd_net net;
    if (world.rank() == 1) net.frozen.fill_(7);
    muster::torch::data_parallel model(context, net);
    require(model.arena().shapes().size() == 3, "each trained parameter once");
    require(net.frozen[0].item<float>() == 0.25f, "frozen parameters are those of rank 0");
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    auto updater = muster::torch::state(optimizer);
    muster::training training(context, model, updater, loader);
    const auto before = net.used->weight.clone();
    const auto run = [&] {
      training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
        whole_batch(step, loader, model);
        step.update(updater);
      });
    };
    run();
    require(!torch::equal(before, net.used->weight), "the layer has been trained");
    require(net.unused[0].item<float>() == 2.0f, "an unused parameter has a gradient of zeros");
    require(net.frozen[0].item<float>() == 0.25f && !net.frozen.grad().defined(), "a frozen parameter has none");
    net.frozen.requires_grad_(true);
    try {
      training.run({.epochs = 2, .log = nullptr},
                   [&](muster::training_step& step) { whole_batch(step, loader, model); });
      require(false, "a parameter that thaws is refused");
    } catch (const muster::configuration_error& error) {
      require(std::string(error.what()).find("'frozen' requires a gradient now") != std::string::npos, error.what());
    }
  });
}

TEST_CASE("modules that differ between ranks are told at every rank, with the first tensor that differs") {
  const std::string kind = GENERATE("count", "shape", "dtype", "buffer");
  std::mutex mutex;
  std::vector<std::string> ends;
  CHECK_THROWS_AS(as_ranks(3,
                           [&](muster::context& context, muster::group& world) {
                             torch::nn::Sequential net(torch::nn::Linear(4, 8));
                             const bool differs = world.rank() == 2;
                             if (kind == "shape") net->push_back(torch::nn::Linear(8, differs ? 4 : 3));
                             if (kind == "count" && !differs) net->push_back(torch::nn::Linear(8, 3));
                             if (kind == "buffer" && differs)
                               net->push_back(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(8).affine(false)));
                             if (kind == "dtype" && differs) net->to(torch::kDouble);
                             try {
                               muster::torch::data_parallel model(context, net);
                             } catch (const muster::mismatch_error& error) {
                               const std::lock_guard lock(mutex);
                               ends.emplace_back(error.what());
                               throw;
                             }
                           }),
                  muster::mismatch_error);
  REQUIRE(ends.size() == 3);
  const std::string expected =
      kind == "count"   ? "rank 0 has parameter '1.weight' float32[3x8], rank 2 has no further tensor"
      : kind == "shape" ? "rank 0 has parameter '1.weight' float32[3x8], rank 2 has parameter '1.weight' float32[4x8]"
      : kind == "dtype" ? "rank 0 has parameter '0.weight' float32[8x4], rank 2 has parameter '0.weight' float64[8x4]"
                        : "rank 0 has no further tensor, rank 2 has buffer '1.running_mean' float32[8]";
  for (const auto& end : ends) CHECK_THAT(end, contains(expected));
}

TEST_CASE("models that cannot be trained are refused") {
  as_ranks(1, [&](muster::context& context, muster::group&) {
    const auto refusal = [&](auto& net) {
      try {
        muster::torch::data_parallel model(context, net);
      } catch (const muster::configuration_error& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    torch::nn::Sequential empty{torch::nn::ReLU()};
    CHECK_THAT(refusal(empty), contains("no parameter that requires a gradient"));
    torch::nn::Sequential complex{torch::nn::Linear(2, 2)};
    complex->to(torch::kComplexFloat);
    CHECK_THAT(refusal(complex), contains("'0.weight' has elements of ComplexFloat"));
    struct meta_net : torch::nn::Module {
      meta_net() { register_parameter("w", torch::empty({2}, torch::kMeta)); }
    } meta;
    CHECK_THAT(refusal(meta), contains("'w' is on meta"));
    const std::shared_ptr<small_net> null;
    CHECK_THAT(refusal(null), contains("is null"));
  });
}

TEST_CASE("after the model, its module has memory of its own") {
  small_net net;
  std::vector<double> trained;
  as_ranks(1, [&](muster::context& context, muster::group&) {
    muster::torch::data_parallel model(context, net);
    trained = values_of(net);
  });
  CHECK(values_of(net) == trained);
  torch::nll_loss(net.forward(torch::ones({2, 4})), torch::zeros({2}, torch::kLong)).backward();
  CHECK(net.first->weight.grad().defined());
}
