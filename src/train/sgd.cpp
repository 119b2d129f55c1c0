#include <muster/train/sgd.hpp>

#include <muster/core/simd.hpp>

namespace muster::inline v0 {
namespace {

struct sgd_kernel {
  static void run(float* parameters, const float* gradients, float* velocities, std::size_t size,
                  const sgd_step<float>* step) {
    if (velocities == nullptr)
      detail::sgd_without_momentum(parameters, gradients, size, *step);
    else if (step->nesterov)
      detail::sgd_with_momentum<true>(parameters, gradients, velocities, size, *step);
    else
      detail::sgd_with_momentum<false>(parameters, gradients, velocities, size, *step);
  }
};

}  // namespace

namespace detail {

void require_sgd(const sgd_options& options) {
  require_momentum(options.momentum);
  require_decay(options.decay);
  if (options.nesterov && options.momentum == 0.0f) {
    throw configuration_error("Nesterov's step needs a momentum (it looks ahead along the velocity); set one above 0");
  }
}

}  // namespace detail

sgd::sgd(arena& arena, const sgd_options& options)
    : arena_(&arena),
      options_(options),
      runs_(detail::runs_of(arena, options.decay == 0 ? nullptr : options.decay_of)) {
  detail::require_sgd(options);
  if (options.momentum != 0.0f) velocity_ = arena.state("velocity");
}

void sgd::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  arena_->update([this, learning_rate] { update(learning_rate); });
}

void sgd::update(double learning_rate) {
  float* const parameters = arena_->parameters().data();
  const float* const gradients = arena_->gradients().data();
  for (const auto& run : runs_) {
    const sgd_step<float> step{.learning_rate = static_cast<float>(learning_rate),
                               .momentum = options_.momentum,
                               .decay = run.chosen ? options_.decay : 0.0f,
                               .nesterov = options_.nesterov};
    float* const velocities = velocity_.empty() ? nullptr : velocity_.data() + run.first;
    detail::run_vectorised<sgd_kernel>(parameters + run.first, gradients + run.first, velocities, run.count, &step);
  }
}

}  // namespace muster::inline v0
