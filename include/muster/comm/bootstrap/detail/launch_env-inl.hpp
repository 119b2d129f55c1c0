#pragma once

#include <muster/comm/bootstrap/launch_env.hpp>

#include <unistd.h>

#include <array>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// The variables of a launcher. The rank counts only if the variable `also` is set too: a shell inside an allocation
// has Slurm's rank without being a step of the allocation.
struct dialect {
  launch_env::launcher kind;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* also;
  std::array<const char*, 2> job;  // the variables that together identify one start
};

inline constexpr dialect dialects[] = {
    {launch_env::launcher::generic,  // set by torchrun, which may be a step of the other launchers
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID",
     {"MASTER_ADDR", "MASTER_PORT"}},
    {launch_env::launcher::open_mpi,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}},
    {launch_env::launcher::pmi,
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     nullptr,
     {"PMI_JOBID", "PMI_KVSNAME"}},
    {launch_env::launcher::slurm,
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     "SLURM_STEP_ID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {launch_env::launcher::generic,
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     nullptr,
     {"MASTER_ADDR", "MASTER_PORT"}},
};

inline std::optional<int> number(const variable_reader& read, const char* name) {
  const auto text = read(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<int>(*text);
  if (!value || *value < 0) {
    throw configuration_error("the launcher's " + std::string(name) + " cannot be '" + *text +
                              "' (not a whole number, 0 or more); unset it or start the program by its launcher");
  }
  return *value;
}

// Returns a name that distinguishes this start from others on the host: the values of the dialect's `job` variables,
// else the number of the parent process, which is the launcher's process on this host. Empty for ranks that were
// started by hand without these variables, because their parent may be a shell, which starts other jobs too.
inline std::string job_of(const dialect& d, const variable_reader& read) {
  const bool by_hand = d.kind == launch_env::launcher::generic;
  std::string name;
  for (const char* const variable : d.job) {
    const auto value = read(variable);
    if (value) name += (name.empty() ? "" : ".") + *value;
    if (!value && by_hand) return "";
  }
  return name.empty() ? std::string(parent_as_name) + std::to_string(::getppid()) : name;
}

// Returns true for a step of srun. The shell of salloc and the script of sbatch are steps whose numbers begin here.
inline bool is_step_of_srun(const std::string& step) {
  constexpr std::uint32_t first_of_slurm = 0xfffffff0;
  return parse_number<std::uint32_t>(step).value_or(0) < first_of_slurm;
}

inline std::string spelled(const char* name, int value) { return std::string(name) + "=" + std::to_string(value); }

}  // namespace detail

MUSTER_INLINE std::string_view to_string(launch_env::launcher kind) noexcept {
  constexpr std::string_view names[] = {"none", "Open MPI", "PMIx", "PMI", "Slurm", "RANK / WORLD_SIZE"};
  return names[static_cast<std::size_t>(kind)];
}

MUSTER_INLINE launch_env detect_launch(const variable_reader& read) {
  for (auto d : detail::dialects) {
    if (d.also != nullptr && !read(d.also)) continue;
    if (d.kind == launch_env::launcher::slurm && !detail::is_step_of_srun(*read(d.also))) continue;
    // With srun --preserve-env the other variable belongs to the allocation.
    constexpr const char* size_of_step = "SLURM_STEP_NUM_TASKS";
    if (d.kind == launch_env::launcher::slurm && read(size_of_step)) d.size = size_of_step;
    const auto rank = detail::number(read, d.rank);
    const auto size = detail::number(read, d.size);
    if (!rank && !size) continue;
    if (!rank || !size) {
      const char* const present = rank ? d.rank : d.size;
      const char* const missing = rank ? d.size : d.rank;
      // A size without a rank does not mean this launcher: batch scripts and containers set it for other purposes.
      if (!rank && d.kind != launch_env::launcher::open_mpi && d.kind != launch_env::launcher::generic) continue;
      throw configuration_error(std::string(present) + " is set and " + missing +
                                " is not (a launcher sets both); set both, or unset it");
    }
    if (*size < 1 || *rank >= *size) {
      throw configuration_error(detail::spelled(d.rank, *rank) + " and " + detail::spelled(d.size, *size) +
                                " contradict each other (ranks count from 0 and stay below the size); correct them");
    }
    launch_env found;
    found.kind = d.kind;
    found.rank = *rank;
    found.size = *size;
    found.local_rank = detail::number(read, d.local_rank).value_or(0);
    if (d.local_size != nullptr) found.local_size = detail::number(read, d.local_size).value_or(0);
    if (d.kind == launch_env::launcher::slurm && read("SLURM_STEP_NUM_NODES") == "1") found.local_size = *size;
    found.start_name = detail::job_of(d, read);
    found.reason = detail::spelled(d.rank, *rank) + ", " + detail::spelled(d.size, *size);
    const bool is_of_torchrun = found.kind == launch_env::launcher::generic && d.also != nullptr;
    const bool has_no_own_mpi =
        found.kind == launch_env::launcher::slurm || (found.kind == launch_env::launcher::generic && !is_of_torchrun);
    if (has_no_own_mpi && read("PMIX_RANK")) found.kind = launch_env::launcher::pmix;
    return found;
  }
  launch_env alone;
  alone.reason = "no launcher's variables are set";
  return alone;
}

MUSTER_INLINE launch_env detect_launch() {
  return detect_launch([](const char* name) { return environment(name); });
}

}}  // namespace muster::v0
