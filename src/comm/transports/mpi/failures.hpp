// Deaths of ranks as MPI sees them: User Level Failure Mitigation, where MPI has it and was started with it.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

namespace muster::inline v0::detail {

/// Whether MPI goes on when ranks die: it has the functions for that (found when muster was built; Open MPI from 5 on),
/// and was started with them (`mpirun --with-ft ulfm`). Asked after MPI_Init.
[[nodiscard]] bool mpi_survives_deaths() noexcept;

/// The ranks of a communicator that have ended, ascending. Acknowledges them, so that receives from any rank work
/// again. Local. None where MPI does not survive deaths.
[[nodiscard]] std::vector<int> ended_ranks(MPI_Comm communicator);

/// "rank 1 has ended (rank 3 of MPI_COMM_WORLD, as MPI says)".
[[nodiscard]] std::string text_of_end(MPI_Comm communicator, int rank);

/// Throws peer_failure naming the ranks of `communicator` that have ended when `code` says that one has, or that the
/// communicator was revoked because of one; and muster::error with MPI's own text for other failures.
void check_mpi(int code, const char* call, MPI_Comm communicator);

/// Wakes all that wait in that communicator, at every rank, with an error; it cannot be used any more. Nothing where
/// MPI does not survive deaths.
void revoke(MPI_Comm communicator) noexcept;

}  // namespace muster::inline v0::detail
