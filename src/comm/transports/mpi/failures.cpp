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

bool reports_death(int code) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING || kind == MPIX_ERR_REVOKED;
}

std::vector<int> translate_ranks(MPI_Group source, const std::vector<int>& ranks, MPI_Comm destination) {
  std::vector<int> translated(ranks.size());
  MPI_Group destination_group = MPI_GROUP_NULL;
  MPI_Comm_group(destination, &destination_group);
  MPI_Group_translate_ranks(source, static_cast<int>(ranks.size()), ranks.data(), destination_group, translated.data());
  MPI_Group_free(&destination_group);
  return translated;
}

}  // namespace

bool mpi_survives_deaths() noexcept {
  int* value = nullptr;
  int is_set = 0;
  if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, &value, &is_set) != MPI_SUCCESS) return false;
  return is_set != 0 && value != nullptr && *value != 0;
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
  if (count > 0) ranks = translate_ranks(ended, ranks, communicator);
  MPI_Group_free(&ended);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void check_mpi(int code, const char* function, MPI_Comm communicator) {
  if (code == MPI_SUCCESS) return;
  if (!reports_death(code)) check_mpi(code, function);
  auto ranks = ended_ranks(communicator);
  const std::string text = ranks.empty() ? "the group was aborted (MPI reports a revoked communicator in " +
                                               std::string(function) + "); see the messages of other ranks"
                                         : text_of_end(communicator, ranks.front());
  throw peer_failure(std::move(ranks), text);
}

std::string text_of_end(MPI_Comm communicator, int rank) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Comm_group(communicator, &all);
  const int world_rank = translate_ranks(all, {rank}, MPI_COMM_WORLD).front();
  MPI_Group_free(&all);
  return "rank " + std::to_string(rank) + " has ended (rank " + std::to_string(world_rank) +
         " of MPI_COMM_WORLD, according to MPI)";
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
