// Gradients without a training, element types, buffers, TorchScript.
#include <muster/torch/data_parallel.hpp>

#include <mutex>

#include <torch/version.h>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/error.hpp>
#include <muster/train/sync/compress.hpp>

#include "small_net.hpp"
#include "torch_catch.hpp"

using test::as_ranks;
using test::largest_difference;
using test::require;
using test::small_net;
using test::values_of;

namespace {

// Returns the input and target of a rank: other points at each.
std::pair<torch::Tensor, torch::Tensor> batch_of(int rank) {
  return {torch::sin(torch::arange(24, torch::kFloat) * (rank + 1)).reshape({6, 4}),
          torch::arange(6, torch::kLong).remainder(3)};
}

torch::Tensor loss_at(small_net& net, int rank) {
  auto [input, target] = batch_of(rank);
  return torch::nll_loss(net.forward(input), target);
}

// Returns the mean over ranks of the gradients that each computes alone, as one array.
std::vector<double> mean_gradients(int ranks, torch::Dtype type, int times = 1) {
  std::vector<double> mean;
  for (int rank = 0; rank < ranks; ++rank) {
    small_net net(0, type);
    for (int k = 0; k < times; ++k) loss_at(net, rank).backward();
    std::vector<double> own;
    for (const auto& parameter : net.parameters()) {
      const auto flat = parameter.grad().to(torch::kDouble).flatten();
      own.insert(own.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    mean.resize(own.size());
    for (std::size_t k = 0; k < own.size(); ++k) mean[k] += own[k] / ranks;
  }
  return mean;
}

std::vector<double> gradients_of(const torch::nn::Module& net) {
  std::vector<double> all;
  for (const auto& parameter : net.parameters()) {
    const auto flat = parameter.grad().to(torch::kDouble).flatten();
    all.insert(all.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return all;
}

}  // namespace

TEST_CASE("without a training, backward() ends with the mean over the ranks, in every type") {
  const int ranks = GENERATE(1, 2, 3);
  const auto type = GENERATE(torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16);
  if (TORCH_VERSION_MAJOR < 2 && type == torch::kHalf) return;  // that LibTorch multiplies no matrices of float16
  CAPTURE(ranks, torch::toString(type));
  const double tolerance = type == torch::kDouble  ? 1e-14
                           : type == torch::kFloat ? 1e-6
                           : type == torch::kHalf  ? 2e-3
                                                   : 2e-2;
  const auto expected = mean_gradients(ranks, type);
  as_ranks(ranks, [&](muster::context& context, muster::group& world) {
    small_net net(world.rank(), type);
    muster::torch::data_parallel model(context, net);
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      loss_at(net, world.rank()).backward();
      require(largest_difference(gradients_of(net), expected) < tolerance, "the mean of the ranks' gradients");
    }
  });
}

TEST_CASE("types may be mixed in a module, and clipping reads all of them") {
  const auto expected = mean_gradients(2, torch::kFloat);
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    small_net net;
    net.first->to(torch::kDouble);
    muster::torch::data_parallel model(context, net, {.sync = {.clip = 0.01f}});
    auto [input, target] = batch_of(world.rank());
    const auto hidden = torch::tanh(net.first(input.to(torch::kDouble))).to(torch::kFloat);
    torch::nll_loss(torch::log_softmax(net.last(hidden), 1), target).backward();
    double squares = 0, clipped_squares = 0;
    const auto found = gradients_of(net);
    for (const double value : expected) squares += value * value;
    for (const double value : found) clipped_squares += value * value;
    require(std::abs(std::sqrt(clipped_squares) - 0.01) < 1e-6, "the norm is the limit");
    auto scaled = expected;
    for (double& value : scaled) value *= 0.01 / std::sqrt(squares);
    require(largest_difference(found, scaled) < 1e-7, "the direction is the mean's");
  });
}

TEST_CASE("no_sync keeps gradients at the rank, where they add up") {
  const auto expected = mean_gradients(2, torch::kFloat, 3);
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    small_net net;
    muster::torch::data_parallel model(context, net);
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      {
        const auto paused = model.no_sync();
        const auto before = world.sequence();
        loss_at(net, world.rank()).backward();
        loss_at(net, world.rank()).backward();
        require(world.sequence() == before, "nothing was sent");
      }
      loss_at(net, world.rank()).backward();
      require(largest_difference(gradients_of(net), expected) < 1e-5, "the mean of the sums");
    }
  });
}

TEST_CASE("a backward pass that throws leaves the model usable") {
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    small_net net;
    muster::torch::data_parallel model(context, net);
    const auto expected = mean_gradients(2, torch::kFloat);
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      try {
        auto [input, target] = batch_of(world.rank());
        const auto hidden = net.first(input);
        hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("a mistake"); });
        torch::nll_loss(torch::log_softmax(net.last(hidden), 1), target).backward();
        require(false, "it throws");
      } catch (const std::exception& error) {
        require(std::string(error.what()).find("a mistake") != std::string::npos, error.what());
      }
      net.zero_grad();
      loss_at(net, world.rank()).backward();
      require(largest_difference(gradients_of(net), expected) < 1e-6, "the mean of the ranks' gradients");
    }
  });
}

TEST_CASE("buffers are rank 0's, or means, or each rank's own") {
  const auto method = GENERATE(muster::torch::buffer_exchange::broadcast, muster::torch::buffer_exchange::average,
                               muster::torch::buffer_exchange::none);
  std::vector<float> means(2);
  std::vector<std::int64_t> counts(2);
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(1));
    muster::torch::data_parallel model(context, net, {.buffers = method});
    const auto input = torch::full({4, 1}, world.rank() + 1.0);
    for (int step = 0; step < 2; ++step) net->forward(input).sum().backward();
    const auto buffers = net->named_buffers();
    means[static_cast<std::size_t>(world.rank())] = buffers["0.running_mean"].item<float>();
    counts[static_cast<std::size_t>(world.rank())] = buffers["0.num_batches_tracked"].item<std::int64_t>();
  });
  const float first = 0.1f + 0.9f * 0.1f;  // of a momentum of 0.1, after two steps
  const auto same = [](float one, float other) { return std::abs(one - other) < 1e-5f; };
  if (method == muster::torch::buffer_exchange::broadcast) CHECK((same(means[0], first) && same(means[1], first)));
  if (method == muster::torch::buffer_exchange::average) CHECK((same(means[0], 1.5f * first) && means[0] == means[1]));
  if (method == muster::torch::buffer_exchange::none) CHECK((same(means[0], first) && same(means[1], 2 * first)));
  CHECK(counts == std::vector<std::int64_t>{2, 2});
}

TEST_CASE("a module of TorchScript trains as a module of C++ does") {
  const auto expected = mean_gradients(2, torch::kFloat);
  as_ranks(2, [&](muster::context& context, muster::group& world) {
    static std::mutex compiling;  // TorchScript's compiler
    torch::jit::Module script("net");
    {
      const std::lock_guard lock(compiling);
      const small_net values(world.rank());
      script.register_parameter("w1", values.first->weight.detach().clone(), false);
      script.register_parameter("b1", values.first->bias.detach().clone(), false);
      script.register_parameter("w2", values.last->weight.detach().clone(), false);
      script.register_parameter("b2", values.last->bias.detach().clone(), false);
      script.define(R"(
        def forward(self, x):
          hidden = torch.tanh(torch.linear(x, self.w1, self.b1))
          return torch.log_softmax(torch.linear(hidden, self.w2, self.b2), 1)
      )");
    }
    for (auto parameter : script.parameters()) parameter.requires_grad_(true);
    muster::torch::data_parallel model(context, script);
    auto [input, target] = batch_of(world.rank());
    torch::nll_loss(model->forward({input}).toTensor(), target).backward();
    std::vector<double> found;
    for (const auto& parameter : script.parameters()) {
      const auto flat = parameter.grad().to(torch::kDouble).flatten();
      found.insert(found.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    require(largest_difference(found, expected) < 1e-6, "the mean of the ranks' gradients");
  });
}

TEST_CASE("codecs and optimizers of muster need float32") {
  as_ranks(2, [&](muster::context& context, muster::group&) {
    small_net net(0, torch::kDouble);
    muster::torch::data_parallel model(context, net);
    const auto refusal = [](const auto& attempt) {
      try {
        attempt();
      } catch (const muster::configuration_error& error) {
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    const std::string type = "(tensor 'first.weight' has elements of float64";
    require(refusal([&] {
              muster::sgd optimizer(model.arena());
            }).find("an optimizer of muster cannot be used " + type) == 0,
            "an optimizer is refused");
    require(refusal([&] {
              muster::gradient_sync sync(model.arena(), {.codec = muster::compress("topk:0.1")});
            }).find("a codec cannot be used " + type) == 0,
            "a codec is refused");
    require(refusal([&] {
              muster::gradient_sync sync(model.arena(), {.virtual_shards = 4});
            }).find("virtual shards cannot be used " + type) == 0,
            "virtual shards are refused");
  });
}
