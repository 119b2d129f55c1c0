// Small modules, and trainings of them with ranks as threads.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include <muster/comm/context.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/record_source.hpp>
#include <muster/torch/data_parallel.hpp>
#include <muster/torch/optimizer.hpp>
#include <muster/torch/tensors.hpp>
#include <muster/train/training.hpp>

#include "../train/trained.hpp"

namespace test {

// A perceptron whose values depend on `seed` alone: threads share LibTorch's generator.
struct small_net : torch::nn::Module {
  explicit small_net(double seed = 0, torch::Dtype type = torch::kFloat) {
    first = register_module("first", torch::nn::Linear(4, 16));
    last = register_module("last", torch::nn::Linear(16, 3));
    to(type);
    set(*this, seed);
  }
  torch::Tensor forward(torch::Tensor input) {
    return torch::log_softmax(last(torch::tanh(first(input.to(first->weight.scalar_type())))), 1);
  }
  static void set(torch::nn::Module& module, double seed) {
    const torch::NoGradGuard no_gradients;
    for (auto& parameter : module.parameters()) {
      seed += 1;
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kDouble) * 1.7 + seed).reshape(parameter.sizes()) * 0.5);
    }
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};

// Points with four coordinates, of three classes.
struct point_source {
  explicit point_source(std::size_t count) : size_(count) {}
  [[nodiscard]] std::string_view name() const { return "points"; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t digest() const { return size_; }
  [[nodiscard]] const muster::data::record_schema& schema() const {
    static const muster::data::record_schema schema{.fields = {{"point", muster::dtype::float32, {4}}},
                                                    .labels = {"class"}};
    return schema;
  }
  void sizes(std::span<const muster::sample_id> ids, std::span<std::uint64_t> out) const {
    std::fill_n(out.begin(), ids.size(), 4 * sizeof(float));
  }
  void read(std::span<const muster::sample_id> ids, const muster::data::record_rows& rows,
            std::vector<muster::bad_record>*) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::array<float, 4> point;
      for (std::size_t k = 0; k < 4; ++k) point[k] = static_cast<float>((ids[i] * (k + 3) * 7919) % 101) / 50.0f - 1.0f;
      if (!rows.bytes.empty()) std::memcpy(rows.bytes.data() + i * sizeof point, point.data(), sizeof point);
      if (!rows.labels.empty()) rows.labels[i] = static_cast<float>(ids[i] % 3);
    }
  }

 private:
  std::size_t size_;
};

inline auto points(std::size_t count, std::uint64_t batch) {
  return muster::data::any_record_source(point_source(count)) | muster::shuffle(3) | muster::batch(batch);
}

// Returns all values of a module's parameters, in double precision.
inline std::vector<double> values_of(const torch::nn::Module& module) {
  std::vector<double> values;
  for (const auto& parameter : module.parameters()) {
    const auto flat = parameter.detach().to(torch::kDouble).contiguous();
    values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

inline double largest_difference(const std::vector<double>& one, const std::vector<double>& other) {
  require(one.size() == other.size(), "two modules have equally many values");
  double largest = 0;
  for (std::size_t k = 0; k < one.size(); ++k) largest = std::max(largest, std::abs(one[k] - other[k]));
  return largest;
}

// Trains a module on the points as a program without muster does: the reference for all ranks.
inline void train_alone(small_net& net, torch::optim::Optimizer& optimizer, std::size_t samples, std::uint64_t batch,
                        std::uint64_t epochs) {
  auto loader = points(samples, batch);
  for (; loader.epoch() < epochs; loader.next_epoch()) {
    while (const auto all = loader.next({0, 1})) {
      auto [input, target] = muster::torch::tensors(all);
      optimizer.zero_grad();
      torch::nll_loss(net.forward(input), target).backward();
      optimizer.step();
      loader.commit();
    }
  }
}

}  // namespace test
