#include "failures.hpp"

#ifdef MUSTER_HAVE_ULFM
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <numeric>
#include <string>

#include <muster/core/error.hpp>

#include "library.hpp"

namespace muster::inline v0::detail {

#ifdef MUSTER_HAVE_ULFM

namespace {

bool is_about_a_death(int code) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING || kind == MPIX_ERR_REVOKED;
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

bool mpi_survives_deaths() noexcept {
  int* told = nullptr;
  int there = 0;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, &told, &there) != MPI_SUCCESS) return false;
  return there != 0 && told != nullptr && *told != 0;
}

std::vector<int> ended_ranks(MPI_Comm communicator) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group ended = MPI_GROUP_NULL;
  if (MPIX_Comm_failure_ack(communicator) != MPI_SUCCESS ||
      MPIX_Comm_failure_get_acked(communicator, &ended) != MPI_SUCCESS)
    return {};
  int count = 0;
  MPI_Group_size(ended, &count);
  std::vector<int> there(static_cast<std::size_t>(count));
  std::iota(there.begin(), there.end(), 0);
  std::vector<int> ranks(there.size());
  if (count > 0) {
    MPI_Comm_group(communicator, &all);
    MPI_Group_translate_ranks(ended, count, there.data(), all, ranks.data());
    MPI_Group_free(&all);
  }
  MPI_Group_free(&ended);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void check_mpi(int code, const char* call, MPI_Comm communicator) {
  if (code == MPI_SUCCESS) return;
  if (!is_about_a_death(code)) check_mpi(code, call);
  auto ranks = ended_ranks(communicator);
  const std::string text = ranks.empty() ? "the group was given up (MPI says so of " + std::string(call) +
                                               "); see the messages of other ranks"
                                         : list_of(ranks) + (ranks.size() == 1 ? " has" : " have") +
                                               " ended (MPI says so of " + std::string(call) + ")";
  throw peer_failure(std::move(ranks), text);
}

void revoke(MPI_Comm communicator) noexcept { (void)MPIX_Comm_revoke(communicator); }

#else

bool mpi_survives_deaths() noexcept { return false; }
std::vector<int> ended_ranks(MPI_Comm) { return {}; }
void check_mpi(int code, const char* call, MPI_Comm) { check_mpi(code, call); }
void revoke(MPI_Comm) noexcept {}

#endif

}  // namespace muster::inline v0::detail
