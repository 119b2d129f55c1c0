#include "library.hpp"

#ifdef MUSTER_HAVE_ULFM
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <numeric>
#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {

#ifdef MUSTER_HAVE_ULFM

namespace {

bool is_about_a_death(int code) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING || kind == MPIX_ERR_REVOKED;
}

std::vector<int> translate(MPI_Group from, const std::vector<int>& ranks, MPI_Comm to) {
  std::vector<int> there(ranks.size());
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Comm_group(to, &all);
  MPI_Group_translate_ranks(from, static_cast<int>(ranks.size()), ranks.data(), all, there.data());
  MPI_Group_free(&all);
  return there;
}

}  // namespace

bool mpi_survives_deaths() noexcept {
  int* told = nullptr;
  int there = 0;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, &told, &there) != MPI_SUCCESS) return false;
  return there != 0 && told != nullptr && *told != 0;
}

std::vector<int> ended_ranks(MPI_Comm communicator) {
  MPI_Group ended = MPI_GROUP_NULL;
  if (MPIX_Comm_failure_ack(communicator) != MPI_SUCCESS ||
      MPIX_Comm_failure_get_acked(communicator, &ended) != MPI_SUCCESS)
    return {};
  int count = 0;
  MPI_Group_size(ended, &count);
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (count > 0) ranks = translate(ended, ranks, communicator);
  MPI_Group_free(&ended);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void check_mpi(int code, const char* call, MPI_Comm communicator) {
  if (code == MPI_SUCCESS) return;
  if (!is_about_a_death(code)) check_mpi(code, call);
  auto ranks = ended_ranks(communicator);
  const std::string text = ranks.empty() ? "the group was aborted (MPI reports a revoked communicator in " +
                                               std::string(call) + "); see the messages of other ranks"
                                         : text_of_end(communicator, ranks.front());
  throw peer_failure(std::move(ranks), text);
}

std::string text_of_end(MPI_Comm communicator, int rank) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Comm_group(communicator, &all);
  const int in_world = translate(all, {rank}, MPI_COMM_WORLD).front();
  MPI_Group_free(&all);
  return "rank " + std::to_string(rank) + " has ended (rank " + std::to_string(in_world) +
         " of MPI_COMM_WORLD, as MPI says)";
}

void revoke(MPI_Comm communicator) noexcept { (void)MPIX_Comm_revoke(communicator); }

#else

bool mpi_survives_deaths() noexcept { return false; }
std::vector<int> ended_ranks(MPI_Comm) { return {}; }
std::string text_of_end(MPI_Comm, int) { return {}; }
void check_mpi(int code, const char* call, MPI_Comm) { check_mpi(code, call); }
void revoke(MPI_Comm) noexcept {}

#endif

}}}  // namespace muster::v0::detail
