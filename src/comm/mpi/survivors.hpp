// The ranks that are left of an MPI job and those that join it, connected anew.
#pragma once

#include "../reconnect.hpp"

namespace muster::inline v0::detail {

#ifdef MUSTER_HAVE_ULFM
/// As surviving_transport::connect wants it: shrinks what is connected to those that live, has them agree that they are
/// the ones that all think of, in the same generation, and takes in those of them that are not connected yet.
std::unique_ptr<any_transport> connect_survivors(const settings& configuration, const regrouping& wanted);
bool can_connect_survivors() noexcept;
#endif

}  // namespace muster::inline v0::detail
