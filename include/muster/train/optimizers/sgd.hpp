// Stochastic gradient descent over an arena.
#pragma once

#include <muster/core/update/sgd.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer_of.hpp>

namespace muster::inline v0 {

/// How `sgd` steps; the meaning of each number is that of `sgd_step`.
struct sgd_options {
  float momentum = 0.0f;     ///< in [0, 1)
  bool nesterov = false;     ///< needs a momentum
  float decay = 0.0f;        ///< weight decay, which for SGD is the same as an L2 penalty of decay / 2 * |parameters|^2
  tensor_filter decay_of{};  ///< the tensors that decay; all when empty
};

/// Updates all parameters of an arena from its gradients. Has its velocity in the arena as state "velocity".
using sgd = optimizer_of<sgd_options, arena>;

}  // namespace muster::inline v0
