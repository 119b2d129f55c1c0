// AdaGrad over an arena.
#pragma once

#include <muster/core/update/adagrad.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer_of.hpp>

namespace muster::inline v0 {

/// How `adagrad` steps; the meaning of each number is that of `adagrad_step`.
struct adagrad_options {
  float epsilon = 1e-10f;    ///< positive
  float decay = 0.0f;        ///< weight decay, as an L2 penalty
  tensor_filter decay_of{};  ///< the tensors that decay; all when empty
};

/// Updates all parameters of an arena from its gradients. Has its sums in the arena as state "squares".
using adagrad = optimizer_of<adagrad_options, arena>;

}  // namespace muster::inline v0
