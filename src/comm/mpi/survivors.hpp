// The ranks that are left of an MPI job, connected anew.
#pragma once

#include "../reconnect.hpp"

namespace muster::inline v0::detail {

#ifdef MUSTER_HAVE_ULFM
/// As surviving_transport::connect wants it: shrinks MPI_COMM_WORLD to those that live, and has them agree that they
/// are the ones that all think of, in the same generation.
std::unique_ptr<any_transport> connect_survivors(const settings& configuration, std::span<const int> ranks, int self,
                                                 std::uint64_t generation);
#endif

}  // namespace muster::inline v0::detail
