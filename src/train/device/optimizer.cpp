#include <muster/train/device/optimizer.hpp>

#include <muster/core/device/update.hpp>

#include "../optimizers/optimizer_of.hpp"

namespace muster::inline v0 {

template class optimizer_of<sgd_options, device_arena>;
template class optimizer_of<adam_options, device_arena>;

}  // namespace muster::inline v0
