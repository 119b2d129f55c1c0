#include <muster/train/lars.hpp>

#include <muster/core/simd.hpp>

namespace muster::inline v0 {
namespace {

struct lars_kernel {
  static void run(float* parameters, const float* gradients, float* velocities, std::size_t size,
                  const lars_step<float>* step) {
    detail::lars_layer(parameters, gradients, velocities, size, *step);
  }
};

}  // namespace

lars::lars(arena& arena, const lars_options& options)
    : arena_(&arena), options_(options), tensors_(detail::tensors_of(arena, options.scaled)) {
  detail::require_momentum(options.momentum);
  detail::require_decay(options.decay);
  if (!(options.trust > 0.0f && std::isfinite(options.trust))) {
    throw configuration_error("trust cannot be " + std::to_string(options.trust) +
                              " (it is by how much of its norm a layer may change); choose a positive number");
  }
  velocity_ = arena.state("velocity");
}

void lars::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  arena_->update([this, learning_rate] { update(learning_rate); });
}

void lars::update(double learning_rate) {
  float* const parameters = arena_->parameters().data();
  const float* const gradients = arena_->gradients().data();
  for (const auto& tensor : tensors_) {
    const lars_step<float> step{.learning_rate = static_cast<float>(learning_rate),
                                .momentum = options_.momentum,
                                .decay = tensor.chosen ? options_.decay : 0.0f,
                                .trust = tensor.chosen ? options_.trust : 0.0f};
    detail::run_vectorised<lars_kernel>(parameters + tensor.first, gradients + tensor.first,
                                        velocity_.data() + tensor.first, tensor.count, &step);
  }
}

}  // namespace muster::inline v0
