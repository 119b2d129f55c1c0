// For programs that use MPI themselves: muster over their communicator. The only header of muster that needs mpi.h.
#pragma once

#include <memory>

#include <mpi.h>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 {

/// A transport over the ranks of `communicator`, to make a `context` from. Collective over it. MPI must be initialised;
/// the communicator is duplicated, so that messages do not mix, and it and MPI itself are left as they were found:
/// destroy the context before MPI_Finalize. With a thread level below MPI_THREAD_SERIALIZED all calls must come from
/// the main thread. Throws configuration_error where that does not hold.
[[nodiscard]] std::unique_ptr<transport> adopt_mpi(MPI_Comm communicator);

}}  // namespace muster::v0
