#include <muster/train/optimizers/optimizer.hpp>

#include <cmath>
#include <concepts>

#include <muster/core/number.hpp>
#include <muster/core/spec.hpp>
#include <muster/train/settings.hpp>

#include "optimizer_of.hpp"

namespace muster::inline v0 {

namespace detail {
namespace {

void require_decay(double decay) {
  if (decay >= 0.0 && std::isfinite(decay)) return;
  throw configuration_error("weight decay cannot be " + std::to_string(decay) +
                            " (it is a penalty); choose 0 or a positive number");
}

void require_momentum(double momentum) {
  if (momentum >= 0.0 && momentum < 1.0) return;
  throw configuration_error("momentum cannot be " + std::to_string(momentum) +
                            " (velocities would grow without end); choose one from 0 to below 1");
}

void require_positive(const char* name, double value, const char* why) {
  if (value > 0.0 && std::isfinite(value)) return;
  throw configuration_error(std::string(name) + " cannot be " + std::to_string(value) + " (" + why +
                            "); choose a positive number");
}

void require_epsilon(double epsilon) { require_positive("epsilon", epsilon, "it prevents a division by 0"); }

void require_share(const char* name, double beta) {
  if (beta >= 0.0 && beta < 1.0) return;
  throw configuration_error(std::string(name) + " cannot be " + std::to_string(beta) +
                            " (it is the share of a mean that stays); choose one from 0 to below 1");
}

}  // namespace

void require_learning_rate(double learning_rate) {
  if (learning_rate >= 0.0 && std::isfinite(learning_rate)) return;
  throw configuration_error("learning rate cannot be " + std::to_string(learning_rate) +
                            " (it is not a number from 0 on); check the schedule");
}

void require_valid(const sgd_options& options) {
  require_momentum(options.momentum);
  require_decay(options.decay);
  if (options.nesterov && options.momentum == 0.0f) {
    throw configuration_error("Nesterov's step needs a momentum (it looks ahead along the velocity); set one above 0");
  }
}

void require_valid(const adam_options& options) {
  require_share("beta1", options.beta1);
  require_share("beta2", options.beta2);
  require_decay(options.decay);
  require_epsilon(options.epsilon);
}

void require_valid(const adagrad_options& options) {
  require_decay(options.decay);
  require_epsilon(options.epsilon);
}

void require_valid(const lars_options& options) {
  require_momentum(options.momentum);
  require_decay(options.decay);
  require_positive("trust", options.trust, "it is by how much of its norm a layer may change");
}

namespace {

// Of a table of servers, which has no tensors and no further keys.
std::string update_named(const std::string& text, std::floating_point auto decay, const tensor_filter& decay_of) {
  if (decay != 0 && decay_of) {
    throw configuration_error(
        "servers cannot decay some tensors alone (a table has no tensors); leave decay-of out, or use another --mode");
  }
  return decay == 0 ? text : text + ",decay=" + number_text(decay);
}

void require_default(const char* name, std::floating_point auto value, std::floating_point auto known) {
  if (value == known) return;
  throw configuration_error(std::string(name) + " cannot be " + number_text(value) + " on servers (they step with " +
                            number_text(known) + "); leave it out, or use another --mode");
}

}  // namespace

std::string server_update(const sgd_options& options) {
  const auto momentum = number_text(options.momentum);
  return update_named(options.momentum == 0 ? "sgd:1"
                      : options.nesterov    ? "nesterov:1," + momentum
                                            : "momentum:1," + momentum,
                      options.decay, options.decay_of);
}

std::string server_update(const adam_options& options) {
  const adam_options known;
  require_default("beta1", options.beta1, known.beta1);
  require_default("beta2", options.beta2, known.beta2);
  require_default("epsilon", options.epsilon, known.epsilon);
  return update_named(options.decoupled ? "adamw:1" : "adam:1", options.decay, options.decay_of);
}

std::string server_update(const adagrad_options& options) {
  require_default("epsilon", options.epsilon, adagrad_options().epsilon);
  return update_named("adagrad:1", options.decay, options.decay_of);
}

std::string server_update(const lars_options&) {
  throw configuration_error(
      "servers cannot step by lars (its rates are of tensors, and a table has none); choose momentum, adam or adagrad, "
      "or use another --mode");
}

}  // namespace detail

template class optimizer_of<sgd_options, arena>;
template class optimizer_of<adam_options, arena>;
template class optimizer_of<adagrad_options, arena>;
template class optimizer_of<lars_options, arena>;

namespace {

tensor_filter decay_of(spec_reader& spec, tensor_filter fallback) {
  return spec.choice_of<tensor_filter>("decay-of", std::move(fallback), {{"all", {}}, {"weights", is_matrix}});
}

}  // namespace

std::string any_optimizer::server_update() const {
  if (server_update_) return server_update_();
  throw configuration_error(
      "servers cannot step by this optimizer (it has no server_update()); give it one, or use another --mode");
}

any_optimizer make_optimizer(arena& of, std::string_view text) {
  spec_reader spec("optimizer", text);
  const auto name = spec.name({"sgd", "momentum", "nesterov", "adam", "adamw", "lars", "adagrad"},
                              "such as momentum:0.9,decay=1e-4 or adam");
  const double decay = spec.number_of("decay", 0.0, 0.0, false);
  if (name == "adam" || name == "adamw") {
    adam_options options;
    options.decay = decay;
    options.decoupled = name == "adamw";
    options.decay_of = decay_of(spec, {});
    options.beta1 = spec.number_of("beta1", options.beta1, 0.0, false);
    options.beta2 = spec.number_of("beta2", options.beta2, 0.0, false);
    options.epsilon = spec.number_of("epsilon", options.epsilon, 0.0, true);
    spec.finish(name + ",decay=1e-2,beta2=0.99");
    return any_optimizer(adam(of, options));
  }
  if (name == "lars") {
    lars_options options;
    if (spec.has_value()) options.momentum = static_cast<float>(spec.number("momentum", 0.0, false));
    options.decay = static_cast<float>(decay);
    options.scaled = decay_of(spec, is_matrix);
    options.trust = static_cast<float>(spec.number_of("trust", static_cast<double>(options.trust), 0.0, true));
    spec.finish("lars:0.9,decay=1e-4,trust=0.001");
    return any_optimizer(lars(of, options));
  }
  if (name == "adagrad") {
    adagrad_options options;
    options.decay = static_cast<float>(decay);
    options.decay_of = decay_of(spec, {});
    options.epsilon = static_cast<float>(spec.number_of("epsilon", static_cast<double>(options.epsilon), 0.0, true));
    spec.finish("adagrad,epsilon=1e-10");
    return any_optimizer(adagrad(of, options));
  }
  sgd_options options;
  options.decay = static_cast<float>(decay);
  options.decay_of = decay_of(spec, {});
  options.nesterov = name == "nesterov";
  if (name != "sgd") options.momentum = static_cast<float>(spec.number("momentum", 0.0, true));
  spec.finish(name == "sgd" ? "sgd,decay=1e-4" : name + ":0.9,decay=1e-4");
  return any_optimizer(sgd(of, options));
}

any_optimizer make_optimizer(arena& of, const settings& chosen) {
  return make_optimizer(of, chosen.value(setting::optimizer));
}

}  // namespace muster::inline v0
