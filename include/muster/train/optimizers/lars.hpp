// Layer-wise adaptive rate scaling over an arena, for large batches.
#pragma once

#include <muster/core/update/lars.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer_of.hpp>

namespace muster::inline v0 {

/// How `lars` steps; the meaning of each number is that of `lars_step`.
struct lars_options {
  float momentum = 0.9f;             ///< in [0, 1)
  float decay = 0.0f;                ///< weight decay
  float trust = 0.001f;              ///< by how much of its norm a layer may change; positive
  tensor_filter scaled = is_matrix;  ///< the tensors that are scaled and decay; the others step by momentum SGD
};

/// Updates all parameters of an arena from its gradients, each tensor with a rate of its own. Has its velocity in the
/// arena as state "velocity".
using lars = optimizer_of<lars_options, arena>;

}  // namespace muster::inline v0
