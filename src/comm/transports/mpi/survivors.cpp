// Connects the surviving ranks of an MPI job again, for elastic sessions (ULFM).
//
// Steps:
// - `shrink_world`: all living ranks of MPI_COMM_WORLD make a communicator and exchange their records.
// - `connect_members`: the ranks repeat that until all are in the same generation.
// - `order_ranks`: the communicator gets the order of the members.
#ifdef MUSTER_HAVE_ULFM

#include <mpi.h>

#include <mpi-ext.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <muster/comm/comm_settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "mpi_transport.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

struct connection_attempt {
  std::vector<std::uint64_t> members;
  std::uint64_t self = 0;
  std::uint64_t generation = 0;
};

// The record of a rank, which it sends to all living ranks.
struct presence {
  std::uint64_t member;
  std::uint64_t generation;
};

struct survivor_group {
  MPI_Comm communicator = MPI_COMM_NULL;
  std::vector<presence> ranks;  // by rank in `communicator`
  [[nodiscard]] bool has(std::uint64_t member) const {
    return std::any_of(ranks.begin(), ranks.end(), [member](const presence& entry) { return entry.member == member; });
  }
};

// Ignores SIGPIPE: Open MPI's tcp writes to dead ranks, and the signal would end this process. A program's own handler
// is kept.
void ignore_broken_pipes() noexcept {
  struct sigaction present {};
  if (::sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) {
    present.sa_handler = SIG_IGN;
    (void)::sigaction(SIGPIPE, &present, nullptr);
  }
}

// Returns MPI, initialised at the first call. MPI is never finalised, since MPI_Finalize would wait for ranks that have
// left.
const std::shared_ptr<mpi_library>& library() {
  // never destroyed: threads that were left running may outlive all static objects
  static const auto* const library_handle = [] {
    auto handle = std::make_unique<std::shared_ptr<mpi_library>>(mpi_library::acquire());
    (*handle)->leave_open();
    ignore_broken_pipes();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return handle.release();
  }();
  return *library_handle;
}

// Makes a communicator of the world's living ranks, whichever members each rank expects. All ranks get the same
// result, or all fail.
std::optional<survivor_group> shrink_world(const connection_attempt& mine) {
  survivor_group survivors;
  if (MPIX_Comm_shrink(MPI_COMM_WORLD, &survivors.communicator) != MPI_SUCCESS) return std::nullopt;
  MPI_Comm_set_errhandler(survivors.communicator, MPI_ERRORS_RETURN);
  int size = 0;
  MPI_Comm_size(survivors.communicator, &size);
  survivors.ranks.resize(static_cast<std::size_t>(size));
  const presence own{mine.self, mine.generation};
  const int code =
      MPI_Allgather(&own, sizeof own, MPI_BYTE, survivors.ranks.data(), sizeof own, MPI_BYTE, survivors.communicator);
  int success = code == MPI_SUCCESS ? 1 : 0;
  const int agreed = MPIX_Comm_agree(survivors.communicator, &success);
  if (success != 0 && agreed == MPI_SUCCESS) return survivors;
  library()->retire(survivors.communicator);
  return std::nullopt;
}

// Returns a communicator with the ranks in the order of the members. Takes over `survivors.communicator`.
MPI_Comm order_ranks(const survivor_group& survivors, const connection_attempt& mine) {
  const bool is_in_order =
      std::equal(survivors.ranks.begin(), survivors.ranks.end(), mine.members.begin(), mine.members.end(),
                 [](const presence& entry, std::uint64_t member) { return entry.member == member; });
  MPI_Comm communicator = survivors.communicator;
  if (is_in_order) return communicator;
  MPI_Comm ordered = MPI_COMM_NULL;
  const auto position = std::find(mine.members.begin(), mine.members.end(), mine.self) - mine.members.begin();
  int success = MPI_Comm_split(communicator, 0, static_cast<int>(position), &ordered) == MPI_SUCCESS ? 1 : 0;
  const bool agreed = MPIX_Comm_agree(communicator, &success) == MPI_SUCCESS && success != 0;
  library()->retire(communicator);
  if (agreed) return ordered;
  if (ordered != MPI_COMM_NULL) library()->retire(ordered);
  return MPI_COMM_NULL;
}

// Throws configuration_error if the members were started by another mpirun: all ranks of this world live, and none is
// the first member. If a rank of this world has died, that rank may be the first member.
void check_world(const survivor_group& survivors, const connection_attempt& mine) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (survivors.ranks.size() < static_cast<std::size_t>(size) || survivors.has(mine.members.front())) return;
  throw configuration_error(
      "this process cannot join the job over transport mpi (another mpirun started it than the job's ranks, and over "
      "MPI a job only shrinks); use --transport shm or tcp, over which a job also grows");
}

// Returns the communicator of the members, by rank; null when other ranks live than the members, or when a rank died
// meanwhile. When a member died between two attempts, ranks arrive one generation apart: the ranks that are ahead then
// wait for the members that are behind.
MPI_Comm connect_members(const connection_attempt& mine) {
  for (;;) {
    const auto survivors = shrink_world(mine);
    if (!survivors) return MPI_COMM_NULL;
    const auto [first, last] =
        std::minmax_element(survivors->ranks.begin(), survivors->ranks.end(),
                            [](const presence& a, const presence& b) { return a.generation < b.generation; });
    const bool same_generation = first->generation == mine.generation && last->generation == mine.generation;
    if (same_generation && survivors->ranks.size() == mine.members.size() &&
        std::all_of(mine.members.begin(), mine.members.end(),
                    [&survivors](std::uint64_t member) { return survivors->has(member); }))
      return order_ranks(*survivors, mine);
    library()->retire(survivors->communicator);
    if (same_generation) check_world(*survivors, mine);
    const bool others_behind = first->generation < mine.generation && last->generation == mine.generation;
    if (!others_behind) return MPI_COMM_NULL;
  }
}

}  // namespace

bool can_connect_survivors() { return !library()->abandoned(); }

std::unique_ptr<transport> connect_survivors(const settings& configuration, std::span<const std::uint64_t> members,
                                             int self, std::uint64_t generation) {
  if (library()->abandoned())
    throw peer_failure({}, "MPI is not used any more (an earlier MPI_Comm_shrink did not return); restart the process");
  if (!mpi_survives_deaths()) {
    throw configuration_error(
        "an elastic job cannot use transport mpi here (this MPI ends the job when a rank dies); start it with mpirun "
        "--with-ft ulfm, or use --transport tcp");
  }
  const connection_attempt mine{{members.begin(), members.end()}, members[static_cast<std::size_t>(self)], generation};
  const double limit = configuration.positive(setting::timeout);
  const auto connected = library()->in_time([mine] { return connect_members(mine); }, deadline_after(seconds(limit)));
  if (!connected) {
    const std::string text = "the survivors of generation " + std::to_string(generation) +
                             " were not connected within " + std::to_string(limit) +
                             " s (MPI_Comm_shrink waits for every rank that lives); MPI is not used any more";
    log(log_level::warning, text);
    throw timeout_error("connecting the survivors", {}, text);
  }
  if (*connected == MPI_COMM_NULL)
    throw peer_failure({}, "the survivors were not connected (the living ranks are not the members of the generation)");
  const bool oversubscribed = members.size() > std::thread::hardware_concurrency();
  return std::make_unique<mpi_transport>(library(), *connected, oversubscribed);
}

}}}  // namespace muster::v0::detail

#endif
