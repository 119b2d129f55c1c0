// Optimizers over the arena of a device.
#pragma once

#include <muster/train/device/arena.hpp>
#include <muster/train/optimizers/adam.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/sgd.hpp>

namespace muster::inline v0 {

/// Optimizers of device_arena: each steps as the one of the same name over an arena of the host does, to the same bits;
/// its arrays have the same names. `apply` puts the step on the arena's stream and does not wait.
using device_sgd = optimizer_of<sgd_options, device_arena>;
using device_adam = optimizer_of<adam_options, device_arena>;
static_assert(optimizer<device_sgd>);

}  // namespace muster::inline v0
