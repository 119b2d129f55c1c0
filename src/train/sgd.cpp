#include <muster/train/sgd.hpp>

#include <cmath>
#include <string>

namespace muster::inline v0 {

sgd::sgd(arena& arena, const sgd_options& options) : arena_(&arena), options_(options) {
  if (!(options.momentum >= 0.0f && options.momentum < 1.0f)) {
    throw configuration_error("momentum cannot be " + std::to_string(options.momentum) +
                              " (velocities would grow without end); choose one from 0 to below 1");
  }
  if (!(options.decay >= 0.0f && std::isfinite(options.decay))) {
    throw configuration_error("weight decay cannot be " + std::to_string(options.decay) +
                              " (it is a penalty); choose 0 or a positive number");
  }
  if (options.nesterov && options.momentum == 0.0f) {
    throw configuration_error("Nesterov's step needs a momentum (it looks ahead along the velocity); set one above 0");
  }
  if (options.momentum != 0.0f) velocity_ = arena.state("velocity");
}

void sgd::apply(double learning_rate) {
  if (!(learning_rate >= 0.0 && std::isfinite(learning_rate))) {
    throw configuration_error("learning rate cannot be " + std::to_string(learning_rate) +
                              " (it is not a number from 0 on); check the schedule");
  }
  sgd_update(arena_->parameters(), std::span<const float>(arena_->gradients()), velocity_,
             {.learning_rate = static_cast<float>(learning_rate),
              .momentum = options_.momentum,
              .decay = options_.decay,
              .nesterov = options_.nesterov});
}

}  // namespace muster::inline v0
