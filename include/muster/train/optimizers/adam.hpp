// Adam and AdamW over an arena.
#pragma once

#include <muster/core/update/adam.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer_of.hpp>

namespace muster::inline v0 {

/// How `adam` steps; the meaning of each number is that of `adam_step`.
struct adam_options {
  double beta1 = 0.9;        ///< in [0, 1)
  double beta2 = 0.999;      ///< in [0, 1)
  double epsilon = 1e-8;     ///< positive
  double decay = 0.0;        ///< weight decay
  bool decoupled = true;     ///< decay as in AdamW; false: as an L2 penalty, as in Adam
  tensor_filter decay_of{};  ///< the tensors that decay; all when empty
};

/// Updates all parameters of an arena from its gradients. Has its means in the arena as states "mean" and "square", and
/// counts its steps.
using adam = optimizer_of<adam_options, arena>;

}  // namespace muster::inline v0
