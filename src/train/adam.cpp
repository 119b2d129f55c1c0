#include <muster/train/adam.hpp>

#include <string>

#include <muster/core/simd.hpp>

namespace muster::inline v0 {
namespace {

struct adam_kernel {
  static void run(float* parameters, const float* gradients, float* means, float* squares, std::size_t size,
                  const detail::adam_factors<float>* by) {
    detail::adam_all(parameters, gradients, means, squares, size, *by);
  }
};

void require_share(double beta, const char* name) {
  if (beta >= 0.0 && beta < 1.0) return;
  throw configuration_error(std::string(name) + " cannot be " + std::to_string(beta) +
                            " (it is the share of a mean that stays); choose one from 0 to below 1");
}

}  // namespace

namespace detail {

void require_adam(const adam_options& options) {
  require_share(options.beta1, "beta1");
  require_share(options.beta2, "beta2");
  require_decay(options.decay);
  if (!(options.epsilon > 0.0 && std::isfinite(options.epsilon))) {
    throw configuration_error("epsilon cannot be " + std::to_string(options.epsilon) +
                              " (it keeps roots of 0 from being divided by); choose a positive number");
  }
}

}  // namespace detail

adam::adam(arena& arena, const adam_options& options)
    : arena_(&arena),
      options_(options),
      runs_(detail::runs_of(arena, options.decay == 0 ? nullptr : options.decay_of)) {
  detail::require_adam(options);
  means_ = arena.state("mean");
  squares_ = arena.state("square");
}

void adam::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  arena_->update([this, learning_rate] { update(learning_rate); });
}

void adam::update(double learning_rate) {
  ++steps_;
  float* const parameters = arena_->parameters().data();
  const float* const gradients = arena_->gradients().data();
  for (const auto& run : runs_) {
    const detail::adam_factors<float> by({.learning_rate = learning_rate,
                                          .beta1 = options_.beta1,
                                          .beta2 = options_.beta2,
                                          .epsilon = options_.epsilon,
                                          .decay = run.chosen ? options_.decay : 0.0,
                                          .decoupled = options_.decoupled,
                                          .count = steps_});
    detail::run_vectorised<adam_kernel>(parameters + run.first, gradients + run.first, means_.data() + run.first,
                                        squares_.data() + run.first, run.count, &by);
  }
}

void adam::describe(state_parts& parts) { parts.add("steps of adam", std::span(&steps_, 1)); }

}  // namespace muster::inline v0
