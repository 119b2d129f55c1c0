#include <muster/train/adagrad.hpp>

#include <muster/core/simd.hpp>

namespace muster::inline v0 {
namespace {

struct adagrad_kernel {
  static void run(float* parameters, const float* gradients, float* squares, std::size_t size,
                  const adagrad_step<float>* step) {
    detail::adagrad_all(parameters, gradients, squares, size, *step);
  }
};

}  // namespace

adagrad::adagrad(arena& arena, const adagrad_options& options)
    : arena_(&arena),
      options_(options),
      runs_(detail::runs_of(arena, options.decay == 0 ? nullptr : options.decay_of)) {
  detail::require_decay(options.decay);
  if (!(options.epsilon > 0.0f && std::isfinite(options.epsilon))) {
    throw configuration_error("epsilon cannot be " + std::to_string(options.epsilon) +
                              " (it keeps roots of 0 from being divided by); choose a positive number");
  }
  squares_ = arena.state("squares");
}

void adagrad::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  arena_->update([this, learning_rate] { update(learning_rate); });
}

void adagrad::update(double learning_rate) {
  float* const parameters = arena_->parameters().data();
  const float* const gradients = arena_->gradients().data();
  for (const auto& run : runs_) {
    const adagrad_step<float> step{.learning_rate = static_cast<float>(learning_rate),
                                   .epsilon = options_.epsilon,
                                   .decay = run.chosen ? options_.decay : 0.0f};
    detail::run_vectorised<adagrad_kernel>(parameters + run.first, gradients + run.first, squares_.data() + run.first,
                                           run.count, &step);
  }
}

}  // namespace muster::inline v0
