// Batch normalisation over the samples of all ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <muster/core/error.hpp>
#include <muster/torch/detail/sync_statistics.hpp>

namespace muster { inline namespace v0 { namespace torch {

/// The implementation of `sync_batch_norm`.
class sync_batch_norm_impl : public ::torch::nn::BatchNorm2dImpl {
 public:
  using ::torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  /// Normalises samples x channels x anything. While the module trains, and within a `data_parallel`, the mean and the
  /// variance are those of the samples of all ranks: collective, also in the backward pass. Otherwise as BatchNorm
  /// does.
  ::torch::Tensor forward(const ::torch::Tensor& input) {
    _check_input_dim(input);
    const bool has_ranks = is_training() && ranks_ != nullptr && ranks_->group != nullptr && ranks_->group->size() > 1;
    if (!has_ranks) return alone(input);
    double factor = 0;
    if (options.track_running_stats()) {
      num_batches_tracked += 1;
      factor = options.momentum().has_value() ? options.momentum().value() : 1.0 / num_batches_tracked.item<double>();
    }
    auto outputs = detail::normalise_over_ranks::apply(input, weight, bias, options.eps(), *ranks_->group);
    if (options.track_running_stats()) {
      const at::NoGradGuard no_gradients;
      running_mean.mul_(1 - factor).add_(outputs[1], factor);
      running_var.mul_(1 - factor).add_(outputs[2], factor);
    }
    return outputs[0];
  }

  /// Names the ranks whose samples are normalised together. `data_parallel` calls it.
  void connect(std::shared_ptr<const detail::current_ranks> ranks) { ranks_ = std::move(ranks); }
  /// Returns a copy, which no `data_parallel` has yet.
  std::shared_ptr<::torch::nn::Module> clone(
      const c10::optional<::torch::Device>& device = c10::nullopt) const override {
    const at::NoGradGuard no_gradients;
    auto copy = std::make_shared<sync_batch_norm_impl>(options);
    const auto copy_all = [](const auto& from, const auto& to) {
      for (std::size_t k = 0; k < from.size(); ++k) to[k].set_data(from[k].detach().clone());
    };
    copy_all(parameters(), copy->parameters());
    copy_all(buffers(), copy->buffers());
    if (device.has_value()) copy->to(*device);
    return copy;
  }
  /// Prints the module and its options.
  void pretty_print(std::ostream& out) const override {
    out << "muster::torch::sync_batch_norm(" << options.num_features() << ", eps=" << options.eps() << ")";
  }

 protected:
  /// Throws configuration_error for an input with fewer than two dimensions or other channels.
  void _check_input_dim(const ::torch::Tensor& input) override {
    if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
    throw configuration_error("a sync_batch_norm of " + std::to_string(options.num_features()) +
                              " channels cannot normalise this input (it has the sizes " + c10::str(input.sizes()) +
                              "); give samples x channels");
  }

 private:
  [[nodiscard]] ::torch::Tensor alone(const ::torch::Tensor& input) {
    const bool counts = is_training() && options.track_running_stats();
    if (counts) num_batches_tracked += 1;
    const double factor = options.momentum().has_value() ? options.momentum().value()
                          : counts                       ? 1.0 / num_batches_tracked.item<double>()
                                                         : 0.0;
    return at::batch_norm(input, weight, bias, running_mean, running_var,
                          is_training() || !options.track_running_stats(), factor, options.eps(), false);
  }

  std::shared_ptr<const detail::current_ranks> ranks_;
};

/// Batch normalisation whose statistics are those of the global batch, for ranks with few samples each:
///
///     torch::nn::Sequential net(torch::nn::Conv2d(3, 64, 3), muster::torch::sync_batch_norm(64), torch::nn::ReLU());
///
/// Takes the options of BatchNorm. Every rank must call the same modules in the same order.
class sync_batch_norm : public ::torch::nn::ModuleHolder<sync_batch_norm_impl> {
 public:
  using ModuleHolder<sync_batch_norm_impl>::ModuleHolder;
};

}}}  // namespace muster::v0::torch
