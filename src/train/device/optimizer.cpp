#include <muster/train/device/optimizer.hpp>

#include <muster/core/error.hpp>

#include "../layout.hpp"

namespace muster::inline v0 {

device_sgd::device_sgd(device_arena& arena, const sgd_options& options)
    : arena_(&arena),
      options_(options),
      runs_(detail::runs_of(arena.shapes(), arena.extents(), options.decay == 0 ? nullptr : options.decay_of)) {
  detail::require_sgd(options);
  if (options.momentum != 0.0f) velocity_ = arena.state("velocity");
}

void device_sgd::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  for (const auto& run : runs_) {
    const sgd_step<float> step{.learning_rate = static_cast<float>(learning_rate),
                               .momentum = options_.momentum,
                               .decay = run.chosen ? options_.decay : 0.0f,
                               .nesterov = options_.nesterov};
    const auto velocities = velocity_.empty() ? velocity_ : velocity_.subspan(run.first, run.count);
    sgd_update(arena_->parameters().subspan(run.first, run.count), arena_->gradients().subspan(run.first, run.count),
               velocities, step, arena_->stream());
  }
}

device_adam::device_adam(device_arena& arena, const adam_options& options)
    : arena_(&arena),
      options_(options),
      runs_(detail::runs_of(arena.shapes(), arena.extents(), options.decay == 0 ? nullptr : options.decay_of)) {
  detail::require_adam(options);
  means_ = arena.state("mean");
  squares_ = arena.state("square");
}

void device_adam::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  ++steps_;
  for (const auto& run : runs_) {
    const adam_step<float> step{.learning_rate = learning_rate,
                                .beta1 = options_.beta1,
                                .beta2 = options_.beta2,
                                .epsilon = options_.epsilon,
                                .decay = run.chosen ? options_.decay : 0.0,
                                .decoupled = options_.decoupled,
                                .count = steps_};
    adam_update(arena_->parameters().subspan(run.first, run.count), arena_->gradients().subspan(run.first, run.count),
                means_.subspan(run.first, run.count), squares_.subspan(run.first, run.count), step, arena_->stream());
  }
}

void device_adam::describe(state_parts& parts) {
  parts.add("steps of adam", std::span(&steps_, 1));
}

}  // namespace muster::inline v0
