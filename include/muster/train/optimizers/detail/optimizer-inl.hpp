#pragma once

#include <muster/train/optimizers/optimizer.hpp>

#include <cmath>

#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/train/optimizers/optimizer_named.hpp>
#include <muster/train/train_settings.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {
inline void require(bool is_valid, const char* name, double value, const char* reason) {
  if (is_valid) return;
  throw configuration_error(std::string(name) + " cannot be " + std::to_string(value) + " (" + reason);
}

inline void require_decay(double decay) {
  require(decay >= 0.0 && std::isfinite(decay), "weight decay", decay,
          "it is a penalty); choose 0 or a positive number");
}

inline void require_momentum(double momentum) {
  require(momentum >= 0.0 && momentum < 1.0, "momentum", momentum,
          "velocities would grow without limit); choose a value from 0 to below 1");
}

inline void require_epsilon(double epsilon) {
  require(epsilon > 0.0 && std::isfinite(epsilon), "epsilon", epsilon,
          "it prevents a division by 0); choose a positive number");
}

inline void require_share(const char* name, double beta) {
  require(beta >= 0.0 && beta < 1.0, name, beta, "it is a decay rate of a mean); choose a value from 0 to below 1");
}

MUSTER_INLINE void require_learning_rate(double learning_rate) {
  require(learning_rate >= 0.0 && std::isfinite(learning_rate), "learning rate", learning_rate,
          "it must be finite and not negative); check the schedule");
}

MUSTER_INLINE void require_valid(const sgd_step<float>& step) {
  require_momentum(step.momentum);
  require_decay(step.decay);
  if (step.nesterov && step.momentum == 0.0f) {
    throw configuration_error("Nesterov's step needs a momentum (it looks ahead along the velocity); set one above 0");
  }
}

MUSTER_INLINE void require_valid(const adam_step<float>& step) {
  require_share("beta1", step.beta1);
  require_share("beta2", step.beta2);
  require_decay(step.decay);
  require_epsilon(step.epsilon);
}

MUSTER_INLINE void require_valid(const adagrad_step<float>& step) {
  require_decay(step.decay);
  require_epsilon(step.epsilon);
}

MUSTER_INLINE void require_valid(const lars_step<float>& step) {
  require_momentum(step.momentum);
  require_decay(step.decay);
  require(step.trust > 0.0f && std::isfinite(step.trust), "trust", step.trust,
          "it is the ratio of a layer's change to its norm); choose a positive number");
}

// Returns the text that names the update function at servers. A table there has no tensors, so weight decay for only
// some tensors is refused.
std::string update_named(const std::string& text, std::floating_point auto decay, bool all_decay) {
  if (!all_decay) {
    throw configuration_error(
        "servers cannot decay some tensors alone (a table has no tensors); leave decay-of out, or use another --mode");
  }
  return decay == 0 ? text : text + ",decay=" + number_text(decay);
}

void require_default(const char* name, std::floating_point auto value, std::floating_point auto standard) {
  if (value == standard) return;
  throw configuration_error(std::string(name) + " cannot be " + number_text(value) + " on servers (they use " +
                            number_text(standard) + "); leave it out, or use another --mode");
}

MUSTER_INLINE std::string server_update(const sgd_step<float>& step, bool all_decay) {
  const auto momentum = number_text(step.momentum);
  return update_named(step.momentum == 0 ? "sgd:1"
                      : step.nesterov    ? "nesterov:1," + momentum
                                         : "momentum:1," + momentum,
                      step.decay, all_decay);
}

MUSTER_INLINE std::string server_update(const adam_step<float>& step, bool all_decay) {
  const adam_step<float> defaults;
  require_default("beta1", step.beta1, defaults.beta1);
  require_default("beta2", step.beta2, defaults.beta2);
  require_default("epsilon", step.epsilon, defaults.epsilon);
  return update_named(step.decoupled ? "adamw:1" : "adam:1", step.decay, all_decay);
}

MUSTER_INLINE std::string server_update(const adagrad_step<float>& step, bool all_decay) {
  require_default("epsilon", step.epsilon, adagrad_step<float>().epsilon);
  return update_named("adagrad:1", step.decay, all_decay);
}

MUSTER_INLINE std::string server_update(const lars_step<float>&, bool) {
  throw configuration_error(
      "servers cannot apply lars (its rates depend on tensors, and a table has none); choose momentum, adam or "
      "adagrad, "
      "or use another --mode");
}

}  // namespace detail

#ifdef MUSTER_COMPILED
template class optimizer_of<sgd_step<float>, arena>;
template class optimizer_of<adam_step<float>, arena>;
template class optimizer_of<adagrad_step<float>, arena>;
template class optimizer_of<lars_step<float>, arena>;
#endif

MUSTER_INLINE std::string any_optimizer::server_update() const {
  if (server_update_) return server_update_();
  throw configuration_error(
      "servers cannot apply this optimizer (it has no server_update()); define one, or use another --mode");
}

MUSTER_INLINE any_optimizer make_optimizer(arena& tensors, std::string_view text) {
  return detail::parse_optimizer(tensors, text);
}
MUSTER_INLINE any_optimizer make_optimizer(arena& tensors, const settings& configuration) {
  return make_optimizer(tensors, configuration.value(setting::optimizer));
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
