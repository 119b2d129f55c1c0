// This process's rank and launcher, read from the variables that launchers set.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <muster/core/function.hpp>

namespace muster { inline namespace v0 {

/// The process's start, as its launcher describes it in environment variables.
struct launch_env {
  /// The launcher, detected by the variables; generic: RANK and WORLD_SIZE, as torchrun sets them.
  enum class launcher { none, open_mpi, pmix, pmi, slurm, generic };

  launcher kind = launcher::none;  ///< none: rank 0 of 1
  int rank = 0;                    ///< rank in the world
  int size = 1;                    ///< size of the world
  int local_rank = 0;              ///< rank among the ranks on this host; 0 too if the launcher does not set it
  int local_size = 0;              ///< number of ranks on this host; 0 if the launcher does not set it
  std::string start_name;          ///< identifies this start on the host; the same at all its processes; empty: unknown
  std::string reason;  ///< the variables that were found, for `muster-info` and errors: "OMPI_COMM_WORLD_RANK=0, ..."

  /// Returns true if all ranks are on this host, according to the launcher.
  [[nodiscard]] bool on_one_host() const noexcept { return local_size == size; }
  /// Returns true if the launcher's processes can find each other through MPI. Slurm's processes can as `pmix` or
  /// `pmi`, and not without these.
  [[nodiscard]] bool speaks_mpi() const noexcept {
    return kind != launcher::none && kind != launcher::generic && kind != launcher::slurm;
  }
};

namespace detail {

/// Begin of a `start_name` that is the number of the parent process.
inline constexpr std::string_view parent_as_name = "child-of-";

}  // namespace detail

[[nodiscard]] std::string_view to_string(launch_env::launcher kind) noexcept;

/// Reads a variable; returns nothing when the variable is not set.
using variable_reader = detail::function<std::optional<std::string>(const char*)>;

/// Detects, in this order, torchrun (TORCHELASTIC_RUN_ID, and the generic variables), Open MPI's mpirun
/// (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK), PMI (PMI_RANK, PMI_SIZE: MPICH, Intel MPI), a step of srun
/// (SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID), and the generic RANK,
/// WORLD_SIZE, LOCAL_RANK. A step of srun or a generic launcher (not torchrun) that also sets PMIX_RANK counts as
/// `pmix`. Without such variables the process is alone. Throws configuration_error naming the variable when a variable
/// is not a number, when a rank has no size, when the rank is not below the size, or when a size of Open MPI or
/// WORLD_SIZE has no rank.
[[nodiscard]] launch_env detect_launch();
/// Detects the same from another source of variables, for tests.
[[nodiscard]] launch_env detect_launch(const variable_reader& read);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
