// How the ranks of a job end: together, with one status, and one of them says why.
#pragma once

#include <exception>

#include <muster/comm/context.hpp>

namespace muster::inline v0::detail {

/// Collective, when this rank has done all: waits for the others, and finds those in a collective that never will be.
void finish(group& world);

/// Collective: the ranks tell each other how they ended and agree on which of them speaks and on the status.
[[nodiscard]] context::outcome settle_world(group& world, std::exception_ptr failure);

}  // namespace muster::inline v0::detail
