// The rank of this process and its launcher, from the variables that launchers set.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// The start of this process, as its launcher describes it in environment variables.
struct launch_env {
  /// The launcher, by the variables that were found; generic: RANK and WORLD_SIZE, as torchrun sets them.
  enum class launcher { none, open_mpi, pmix, pmi, slurm, generic };

  launcher kind = launcher::none;  ///< none: rank 0 of 1
  int rank = 0;                    ///< in the world
  int size = 1;                    ///< of the world
  int local_rank = 0;              ///< among the ranks of this host; 0 too where the launcher does not give it
  int local_size = 0;              ///< ranks on this host; 0 where the launcher does not give it
  std::string job;                 ///< identifies this start on the host; the same at all its processes; empty: unknown
  std::string why;                 ///< the variables found, for `muster-info` and errors: "OMPI_COMM_WORLD_RANK=0, ..."

  /// Whether all ranks are on this host, as far as the launcher says.
  [[nodiscard]] bool on_one_host() const noexcept { return local_size == size; }
  /// Whether the launcher's processes can find each other through MPI. Slurm's do as `pmix` or `pmi`, not without
  /// these.
  [[nodiscard]] bool speaks_mpi() const noexcept {
    return kind != launcher::none && kind != launcher::generic && kind != launcher::slurm;
  }
};

[[nodiscard]] std::string_view to_string(launch_env::launcher kind) noexcept;

/// Reads a variable; nothing when it is not set.
using variable_reader = std::function<std::optional<std::string>(const char*)>;

/// Looks, in this order, for torchrun (TORCHELASTIC_RUN_ID, and the generic variables), Open MPI's mpirun
/// (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK), PMIx (PMIX_RANK with a size from PMI, Slurm or WORLD_SIZE), PMI
/// (PMI_RANK, PMI_SIZE: MPICH, Intel MPI), a step of srun (SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or
/// SLURM_NTASKS, SLURM_LOCALID), and the generic RANK, WORLD_SIZE, LOCAL_RANK; none of them means alone. Throws
/// configuration_error naming the variable when one is not a number, when a rank lacks its size or the other way round,
/// or is not below it.
[[nodiscard]] launch_env detect_launch();
/// The same from another reader, for tests.
[[nodiscard]] launch_env detect_launch(const variable_reader& read);

}}  // namespace muster::v0
