// A transport over the communicator of a program that uses MPI itself. The only header of muster that needs mpi.h.
#pragma once

#include <memory>

#include <mpi.h>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 {

/// Returns a transport over the ranks of `communicator`, from which to make a `context`. Collective over the
/// communicator. MPI must be initialised. The communicator is duplicated, so that messages do not mix, and the
/// communicator and MPI itself are left as they were found: destroy the context before MPI_Finalize. With a thread
/// level below MPI_THREAD_SERIALIZED all calls must be made by the main thread. Throws configuration_error if these
/// conditions do not hold.
[[nodiscard]] std::unique_ptr<transport> adopt_mpi(MPI_Comm communicator);

}}  // namespace muster::v0
