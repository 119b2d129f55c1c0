// The ranks that are left of an MPI job, connected anew: for elastic sessions.
#include <array>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#ifdef MUSTER_HAVE_ULFM
#include <mpi.h>

#include <mpi-ext.h>
#endif

#include <muster/core/error.hpp>

#include "survivors.hpp"
#include "transport.hpp"

namespace muster::inline v0::detail {

#ifdef MUSTER_HAVE_ULFM

namespace {

// Of all ranks that live, whoever they think is left: all of them see the same, or fail together.
struct meeting {
  MPI_Comm made = MPI_COMM_NULL;
  long last = 0;   // generation that anybody wants
  long first = 0;  // the same, the oldest
};

std::optional<meeting> meet(long generation) {
  meeting now;
  if (MPIX_Comm_shrink(MPI_COMM_WORLD, &now.made) != MPI_SUCCESS) return std::nullopt;
  MPI_Comm_set_errhandler(now.made, MPI_ERRORS_RETURN);
  const std::array<long, 2> mine{generation, -generation};
  std::array<long, 2> all{};
  const int code = MPI_Allreduce(mine.data(), all.data(), 2, MPI_LONG, MPI_MAX, now.made);
  int fine = code == MPI_SUCCESS ? 1 : 0;
  const int agreed = MPIX_Comm_agree(now.made, &fine);
  now.last = all[0];
  now.first = -all[1];
  if (fine != 0 && agreed == MPI_SUCCESS) return now;
  MPI_Comm_free(&now.made);
  return std::nullopt;
}

std::vector<int> in_world(MPI_Comm communicator) {
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Group all = MPI_GROUP_NULL;
  int size = 0;
  MPI_Comm_group(communicator, &some);
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_size(some, &size);
  std::vector<int> here(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) here[static_cast<std::size_t>(r)] = r;
  std::vector<int> there(here.size());
  MPI_Group_translate_ranks(some, size, here.data(), all, there.data());
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return there;
}

// Nothing when others are left than those, or somebody died meanwhile.
std::optional<MPI_Comm> connect_those(const std::vector<int>& ranks, long generation) {
  for (;;) {
    auto now = meet(generation);
    if (!now) return std::nullopt;
    if (now->first == generation && now->last == generation && in_world(now->made) == ranks) return now->made;
    const bool others_follow = now->first < generation && now->last == generation;
    MPI_Comm_free(&now->made);
    if (!others_follow) return std::nullopt;
  }
}

std::shared_ptr<mpi_library> library_of_survivors() {
  // Kept, and never finalised: that would wait for ranks that have left.
  static const std::shared_ptr<mpi_library> kept = [] {
    auto library = mpi_library::acquire();
    library->leave_open();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return library;
  }();
  return kept;
}

}  // namespace

std::unique_ptr<any_transport> connect_survivors(const settings& configuration, std::span<const int> ranks, int self,
                                                 std::uint64_t generation) {
  const auto library = library_of_survivors();
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!mpi_survives_deaths()) {
    throw configuration_error(
        "an elastic job cannot use transport mpi here (this MPI does not go on when a rank dies); start it with mpirun "
        "--with-ft ulfm, or use --transport tcp");
  }
  if (rank != self || ranks.size() > static_cast<std::size_t>(size)) {
    throw configuration_error("this process cannot join over transport mpi (mpirun started it as rank " +
                              std::to_string(rank) + " of " + std::to_string(size) +
                              ", not as one of the job); use --transport tcp where ranks join");
  }
  if (library->abandoned()) {
    throw error(error_kind::other,
                "the survivors cannot be connected over MPI any more (an earlier attempt is stuck); "
                "end the program");
  }
  // Shrinking waits for whoever lives, and nothing in MPI ends that: so a thread does it, which can be left behind.
  auto promise = std::make_shared<std::promise<std::optional<MPI_Comm>>>();
  auto result = promise->get_future();
  std::thread([promise, these = std::vector<int>(ranks.begin(), ranks.end()), generation] {
    promise->set_value(connect_those(these, static_cast<long>(generation)));
  }).detach();
  const double limit = configuration.positive(setting::timeout);
  if (result.wait_for(seconds(limit)) != std::future_status::ready) {
    library->abandon();
    throw timeout_error("connecting the survivors", {},
                        "the survivors of generation " + std::to_string(generation) + " did not come together in " +
                            std::to_string(limit) + " s (MPI_Comm_shrink waits for all that live)");
  }
  const auto made = result.get();
  if (!made) throw peer_failure({}, "the survivors were not connected (others are left than they thought)");
  const bool crowded = ranks.size() > std::thread::hardware_concurrency();
  return std::make_unique<any_transport>(std::make_unique<mpi_transport>(library, *made, crowded));
}

#endif

}  // namespace muster::inline v0::detail
