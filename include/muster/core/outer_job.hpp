// The variables by which muster-launch names its job to its ranks, and how a launcher below such a rank leaves that
// job.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace muster { inline namespace v0 { namespace detail {

/// Variables of other launchers. muster-launch removes these from its ranks. If a process of its job has one, another
/// launcher started the process below a rank.
inline constexpr const char* variables_of_other_launchers[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",      "PMI_SIZE",           "PMIX_RANK",
    "PMIX_NAMESPACE",       "SLURM_PROCID",         "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"};

/// The variable that has the name of muster-launch's job, or "-" if the job has no name.
inline constexpr const char* name_of_outer_job = "LAUNCHED_BY_MUSTER_AS";

inline bool has_variable(const char* name) noexcept {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

/// Returns true if another launcher started this process below a rank of muster-launch. MPI_Init of a process without a
/// launcher sets variables of PMIx in the process itself, so these are no proof.
inline bool has_other_launcher() noexcept {
  return std::ranges::any_of(variables_of_other_launchers, [](const char* name) {
    return !std::string_view(name).starts_with("PMIX_") && has_variable(name);
  });
}

/// Removes variables of the job of a muster-launch whose rank this process is, or is below. The process would otherwise
/// join that job. A new value of MUSTER_JOB keeps the variables. A launcher (`is_launcher`) keeps the variables that it
/// sets for its own ranks. Not thread safe.
inline void leave_outer_job(bool is_launcher) {
  const char* const outer = std::getenv(name_of_outer_job);
  const char* const job = std::getenv("MUSTER_JOB");
  if (outer == nullptr || std::string_view(outer) != (has_variable("MUSTER_JOB") ? job : "-")) return;
  for (const char* const name : {"MUSTER_JOB", "MUSTER_RENDEZVOUS", "MUSTER_TOKEN", "MUSTER_FLIGHT_RECORDER"})
    ::unsetenv(name);
  // Ranks of torchrun have values of their own.
  for (const char* const name : {"MASTER_ADDR", "MASTER_PORT"})
    if (is_launcher) ::unsetenv(name);
  for (const char* const name : {"MUSTER_ELASTIC", "MUSTER_MIN_RANKS", "MUSTER_MAX_RANKS"})
    if (!is_launcher) ::unsetenv(name);
  ::unsetenv(name_of_outer_job);
}

}}}  // namespace muster::v0::detail
