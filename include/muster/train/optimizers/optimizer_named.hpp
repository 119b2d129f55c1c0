// Parses the optimizers that command lines name, over any arena.
#pragma once

#include <concepts>
#include <string_view>

#include <muster/core/spec.hpp>

#include <muster/train/optimizers/optimizer_of.hpp>

namespace muster { inline namespace v0 { namespace detail {

template <class Step, class Arena>
any_optimizer make_any_optimizer(Arena& values, const Step& constants, const tensor_filter& decay_of,
                                 const spec_reader& spec) {
  if constexpr (std::same_as<Arena, arena> || std::same_as<Step, sgd_step<float>> ||
                std::same_as<Step, adam_step<float>>)
    return any_optimizer(optimizer_of<Step, Arena>(values, constants, decay_of));
  else
    throw configuration_error("optimizer '" + spec.text() +
                              "' cannot be used (devices have no kernel for it); choose sgd, momentum, nesterov, adam "
                              "or adamw, or train on the host");
}

template <class Arena>
any_optimizer parse_optimizer(Arena& values, std::string_view text) {
  spec_reader spec("optimizer", text);
  const auto name = spec.name({"sgd", "momentum", "nesterov", "adam", "adamw", "lars", "adagrad"},
                              "such as momentum:0.9,decay=1e-4 or adam");
  const double decay = spec.number_of("decay", 0.0, 0.0, false);
  const auto decay_of = spec.choice_of<tensor_filter>("decay-of", name == "lars" ? tensor_filter(is_matrix) : nullptr,
                                                      {{"all", {}}, {"weights", is_matrix}});
  if (name == "adam" || name == "adamw") {
    adam_step<float> step{.decay = decay, .decoupled = name == "adamw"};
    step.beta1 = spec.number_of("beta1", step.beta1, 0.0, false);
    step.beta2 = spec.number_of("beta2", step.beta2, 0.0, false);
    step.epsilon = spec.number_of("epsilon", step.epsilon, 0.0, true);
    spec.finish(name + ",decay=1e-2,beta2=0.99");
    return make_any_optimizer(values, step, decay_of, spec);
  }
  if (name == "lars") {
    lars_step<float> step{.decay = static_cast<float>(decay)};
    if (spec.has_value()) step.momentum = static_cast<float>(spec.number("momentum", 0.0, false));
    step.trust = static_cast<float>(spec.number_of("trust", static_cast<double>(step.trust), 0.0, true));
    spec.finish("lars:0.9,decay=1e-4,trust=0.001");
    return make_any_optimizer(values, step, decay_of, spec);
  }
  if (name == "adagrad") {
    adagrad_step<float> step{.decay = static_cast<float>(decay)};
    step.epsilon = static_cast<float>(spec.number_of("epsilon", static_cast<double>(step.epsilon), 0.0, true));
    spec.finish("adagrad,epsilon=1e-10");
    return make_any_optimizer(values, step, decay_of, spec);
  }
  sgd_step<float> step{.nesterov = name == "nesterov", .decay = static_cast<float>(decay)};
  if (name != "sgd") step.momentum = static_cast<float>(spec.number("momentum", 0.0, true));
  spec.finish(name == "sgd" ? "sgd,decay=1e-4" : name + ":0.9,decay=1e-4");
  return make_any_optimizer(values, step, decay_of, spec);
}

}}}  // namespace muster::v0::detail
