// Batch normalisation over ranks equals batch normalisation of the whole batch.
#include <muster/torch/sync_batch_norm.hpp>

#include <mutex>

#include <muster/core/error.hpp>

#include "small_net.hpp"
#include "torch_catch.hpp"

using test::as_ranks;
using test::largest_difference;
using test::require;
using test::values_of;

namespace {

template <class Norm>
struct normed_net : torch::nn::Module {
  normed_net() {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", Norm(torch::nn::BatchNormOptions(6)));
    last = register_module("last", torch::nn::Linear(6, 3));
    to(torch::kDouble);
    test::small_net::set(*this, 1);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto hidden = first(input.to(torch::kDouble)).unsqueeze(2).unsqueeze(3);  // samples x channels x 1 x 1
    return torch::log_softmax(last(torch::relu(norm(hidden).flatten(1))), 1);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  Norm norm{nullptr};
};

template <class Norm>
std::vector<double> train(int ranks, std::uint64_t batch, std::size_t samples = 50) {
  std::vector<double> ended;
  std::mutex mutex;
  as_ranks(ranks, [&](muster::context& context, muster::group&) {
    auto loader = test::points(samples, batch);
    normed_net<Norm> net;
    muster::torch::data_parallel model(context, net);
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto updater = muster::torch::state(optimizer);
    muster::training training(context, model, updater, loader);
    training.run({.epochs = 2, .log = nullptr}, [&](muster::training_step& step) {
      auto [input, target] = muster::torch::tensors(step.next(loader));
      step.backward(model, torch::nll_loss(model->forward(input), target));
      step.update(updater);
    });
    auto values = values_of(net);
    for (const auto& buffer : net.buffers()) {
      const auto flat = buffer.to(torch::kDouble).flatten();
      values.insert(values.end(), flat.template data_ptr<double>(), flat.template data_ptr<double>() + flat.numel());
    }
    const std::lock_guard lock(mutex);
    if (ended.empty()) ended = values;
    require(ended == values, "all ranks have the same bits, also of the running statistics");
  });
  return ended;
}

}  // namespace

TEST_CASE("statistics over the ranks train as those of the whole batch do") {
  const int ranks = GENERATE(1, 2, 3);
  const std::uint64_t batch = GENERATE(12, 16);  // 50 samples: a last batch of 2, so that a rank of 3 has none
  CAPTURE(ranks, batch);
  const auto whole = train<torch::nn::BatchNorm2d>(1, batch);
  CHECK(largest_difference(train<muster::torch::sync_batch_norm>(ranks, batch), whole) < 1e-10);
}

TEST_CASE("the usual norm has statistics of each rank's part") {
  const auto whole = train<torch::nn::BatchNorm2d>(1, 12, 48);
  CHECK(largest_difference(train<torch::nn::BatchNorm2d>(2, 12, 48), whole) > 1e-4);
  CHECK(largest_difference(train<muster::torch::sync_batch_norm>(2, 12, 48), whole) < 1e-10);
}

TEST_CASE("outside of a model, and in evaluations, the norm is the usual one") {
  muster::torch::sync_batch_norm norm(3);
  torch::nn::BatchNorm2d usual(3);
  const auto input = torch::sin(torch::arange(72, torch::kFloat)).reshape({4, 3, 2, 3});
  CHECK(torch::allclose(norm(input), usual(input)));
  CHECK(torch::equal(norm->running_mean, usual->running_mean));
  norm->eval();
  usual->eval();
  CHECK(torch::allclose(norm(input), usual(input)));
  const auto copy = std::dynamic_pointer_cast<muster::torch::sync_batch_norm_impl>(norm->clone());
  REQUIRE(copy != nullptr);
  CHECK(torch::equal(copy->running_var, norm->running_var));
  CHECK_THROWS_WITH(norm(torch::zeros({2, 5})), contains("a sync_batch_norm of 3 channels"));
}
