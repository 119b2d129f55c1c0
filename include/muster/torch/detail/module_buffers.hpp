// The buffers of a module, such as the running statistics of batch normalisation: exchanged by ranks, and saved.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/group.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>
#include <muster/torch/detail/module_tensors.hpp>

namespace muster { inline namespace v0 { namespace torch {

/// The values that a module's buffers have after a step.
enum class buffer_exchange : std::uint8_t {
  broadcast,  ///< those of rank 0 at every rank, as DistributedDataParallel has them
  average,    ///< floating-point buffers: the mean over the ranks; others: those of rank 0
  none        ///< each rank its own
};

namespace detail {

/// Buffers, packed one after another for a message or a save.
class module_buffers {
 public:
  module_buffers(std::vector<named_tensor> buffers, buffer_exchange method)
      : buffers_(std::move(buffers)), method_(method) {
    std::size_t averaged = 0;
    for (const auto& entry : buffers_) {
      offsets_.push_back(size_);
      size_ += (bytes_of(entry.tensor) + alignment - 1) / alignment * alignment;
      if (is_averaged(entry.tensor)) averaged += static_cast<std::size_t>(entry.tensor.numel());
    }
    packed_.resize(size_);
    means_.resize(averaged);
  }

  /// Averages the buffers over the ranks, or gives every rank the buffers of rank 0, as the method defines. Collective.
  void exchange(group& ranks) {
    if (ranks.size() == 1 || buffers_.empty() || method_ == buffer_exchange::none) return;
    if (method_ == buffer_exchange::average) return average(ranks);
    broadcast_all(ranks);
  }
  /// Gives every rank the buffers of rank 0; collective.
  void broadcast_all(group& ranks) {
    if (ranks.size() == 1 || size_ == 0) return;
    pack(packed_);
    broadcast(ranks, packed_, 0);
    unpack(packed_);
  }

  /// Describes the buffers, as for a state_owner. A step changes them before it commits.
  void describe(state_parts& parts) {
    if (buffers_.empty()) return;
    const bool own = method_ == buffer_exchange::none;
    parts.add(
        "buffers of the module", own ? state_kind::rank_local : state_kind::replicated,
        [this] {
          std::vector<std::byte> bytes(size_);
          pack(bytes);
          return bytes;
        },
        [this](std::span<const std::byte> bytes) {
          if (bytes.size() != size_) {
            throw configuration_error("the saved buffers of a module have " + std::to_string(bytes.size()) +
                                      " bytes (this module's have " + std::to_string(size_) +
                                      "); use the module that saved them");
          }
          unpack(bytes);
        },
        rollback_policy::restore_on_failure);
    if (!own) parts.exchange([this](group& ranks) { exchange(ranks); });
  }

 private:
  static constexpr std::size_t alignment = 16;

  [[nodiscard]] static bool is_averaged(const at::Tensor& tensor) { return tensor.is_floating_point(); }
  [[nodiscard]] static at::Tensor view(const at::Tensor& like, const void* memory) {
    return at::from_blob(const_cast<void*>(memory), like.sizes(), like.options().requires_grad(false));
  }

  void pack(std::vector<std::byte>& bytes) const {
    const at::NoGradGuard no_gradients;
    for (std::size_t k = 0; k < buffers_.size(); ++k) {
      if (buffers_[k].tensor.numel() == 0) continue;
      (void)view(buffers_[k].tensor, bytes.data() + offsets_[k]).copy_(buffers_[k].tensor);
    }
  }
  void unpack(std::span<const std::byte> bytes) {
    const at::NoGradGuard no_gradients;
    for (std::size_t k = 0; k < buffers_.size(); ++k) {
      if (buffers_[k].tensor.numel() == 0) continue;
      (void)buffers_[k].tensor.copy_(view(buffers_[k].tensor, bytes.data() + offsets_[k]));
    }
  }

  // Averages in double precision.
  void average(group& ranks) {
    const at::NoGradGuard no_gradients;
    const auto for_each = [&](const auto& f) {
      double* at = means_.data();
      for (auto& entry : buffers_) {
        if (!is_averaged(entry.tensor)) continue;
        f(entry.tensor, at::from_blob(at, entry.tensor.sizes(), at::kDouble));
        at += entry.tensor.numel();
      }
    };
    for_each([](at::Tensor& buffer, at::Tensor mean) { (void)mean.copy_(buffer); });
    if (!means_.empty()) allreduce(ranks, means_, mean);
    broadcast_all(ranks);
    for_each([](at::Tensor& buffer, const at::Tensor& mean) { (void)buffer.copy_(mean); });
  }

  std::vector<named_tensor> buffers_;
  buffer_exchange method_;
  std::vector<std::size_t> offsets_;
  std::size_t size_ = 0;
  std::vector<std::byte> packed_;
  std::vector<double> means_;
};

}  // namespace detail
}}}  // namespace muster::v0::torch
