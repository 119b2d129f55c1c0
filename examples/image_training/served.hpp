// The training with a parameter server: each worker at its own pace.
#pragma once

#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>

#include "data.hpp"
#include "options.hpp"

namespace images {

/// Collective: the last `--servers` ranks keep the parameters, the others train, each with running statistics of its
/// own. An epoch ends when the first worker has gone through its part of it; that one evaluates, prints, reports and
/// saves, while the others go on. Throws muster::configuration_error at every rank for options that do not go with it.
void train_served(muster::context& context, muster::group& world, const image_data& data, const options& chosen);

}  // namespace images
