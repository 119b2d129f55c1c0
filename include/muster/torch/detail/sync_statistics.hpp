// The arithmetic of batch normalisation over ranks, and its gradient.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/group.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

/// The ranks of the current step; null outside.
struct current_ranks {
  muster::group* group = nullptr;
};

/// Returns the sums over the ranks of the rows, in double precision.
[[nodiscard]] inline at::Tensor sum_over_ranks(group& ranks, const at::Tensor& rows) {
  at::Tensor sums = rows.to(at::kDouble).contiguous();
  allreduce(ranks, std::span<double>(sums.data_ptr<double>(), static_cast<std::size_t>(sums.numel())), sum);
  return sums;
}

/// Batch normalisation with the mean and variance over the samples of all ranks (Ioffe and Szegedy 2015,
/// https://arxiv.org/abs/1502.03167). Returns the output, the mean and the unbiased variance. Collective, in both
/// directions.
struct normalise_over_ranks : ::torch::autograd::Function<normalise_over_ranks> {
  using context = ::torch::autograd::AutogradContext;
  using tensors = ::torch::autograd::variable_list;

  static tensors forward(context* ctx, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                         double eps, group& ranks) {
    const auto others = dimensions_but_channels(input);
    const at::Tensor wide = input.to(at::kDouble);
    const double here = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
    const at::Tensor sums =
        sum_over_ranks(ranks, at::cat({wide.sum(others), wide.square().sum(others), at::full({1}, here, at::kDouble)}));
    const std::int64_t channels = input.size(1);
    const double count = sums[2 * channels].item<double>();
    const at::Tensor mean = sums.narrow(0, 0, channels) / count;
    const at::Tensor variance = (sums.narrow(0, channels, channels) / count - mean.square()).clamp_min(0);
    const at::Tensor scale = (variance + eps).rsqrt();
    const at::Tensor standardised = (wide - along_channels(mean, input)) * along_channels(scale, input);
    at::Tensor output = standardised;
    if (weight.defined()) output = output * along_channels(weight.to(at::kDouble), input);
    if (bias.defined()) output = output + along_channels(bias.to(at::kDouble), input);
    ctx->save_for_backward({standardised.to(input.scalar_type()), scale, weight, bias});
    ctx->saved_data["count"] = count;
    ctx->saved_data["ranks"] = reinterpret_cast<std::int64_t>(&ranks);
    const at::Tensor unbiased = variance * (count / std::max(count - 1, 1.0));
    return {output.to(input.scalar_type()), mean.to(input.scalar_type()), unbiased.to(input.scalar_type())};
  }

  static tensors backward(context* ctx, const tensors& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &standardised = saved[0], &scale = saved[1], &weight = saved[2], &bias = saved[3];
    auto& ranks = *reinterpret_cast<group*>(ctx->saved_data["ranks"].toInt());
    const double count = ctx->saved_data["count"].toDouble();
    const auto others = dimensions_but_channels(standardised);
    const at::Tensor slope = gradients[0].to(at::kDouble), values = standardised.to(at::kDouble);
    const at::Tensor own_bias = slope.sum(others), own_weight = (slope * values).sum(others);
    const at::Tensor sums = sum_over_ranks(ranks, at::cat({own_bias, own_weight})) / count;
    const std::int64_t channels = scale.numel();
    at::Tensor factor = scale;
    if (weight.defined()) factor = factor * weight.to(at::kDouble);
    const at::Tensor input = (slope - along_channels(sums.narrow(0, 0, channels), slope) -
                              values * along_channels(sums.narrow(0, channels, channels), slope)) *
                             along_channels(factor, slope);
    return {input.to(gradients[0].scalar_type()), weight.defined() ? own_weight.to(weight.scalar_type()) : at::Tensor(),
            bias.defined() ? own_bias.to(bias.scalar_type()) : at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  [[nodiscard]] static std::vector<std::int64_t> dimensions_but_channels(const at::Tensor& input) {
    std::vector<std::int64_t> others{0};
    for (std::int64_t k = 2; k < input.dim(); ++k) others.push_back(k);
    return others;
  }
  [[nodiscard]] static at::Tensor along_channels(const at::Tensor& values, const at::Tensor& like) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
    sizes[1] = values.numel();
    return values.reshape(sizes);
  }
};

}}}}  // namespace muster::v0::torch::detail
