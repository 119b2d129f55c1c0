// The ranks that are left of an MPI job, connected anew: for elastic sessions.
#ifdef MUSTER_HAVE_ULFM

#include <mpi.h>

#include <mpi-ext.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "transport.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

struct attempt {
  std::vector<std::uint64_t> members;
  std::uint64_t self = 0;
  std::uint64_t generation = 0;
};

// What each rank says of itself in the communicator of all that live.
struct presence {
  std::uint64_t member;
  std::uint64_t generation;
};

struct meeting {
  MPI_Comm made = MPI_COMM_NULL;
  std::vector<presence> all;  // by rank there
  [[nodiscard]] bool has(std::uint64_t member) const {
    return std::any_of(all.begin(), all.end(), [member](const presence& one) { return one.member == member; });
  }
};

// Open MPI's tcp writes to those that have died, and would have this process ended by that; a program that has a
// handler of its own keeps it.
void ignore_broken_pipes() noexcept {
  struct sigaction present {};
  if (::sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) {
    present.sa_handler = SIG_IGN;
    (void)::sigaction(SIGPIPE, &present, nullptr);
  }
}

// Begins MPI. Kept, and never finalised: that would wait for ranks that have left.
const std::shared_ptr<mpi_library>& library() {
  static const auto* const known = [] {  // threads that were left behind may outlive all that is destroyed
    auto made = std::make_unique<std::shared_ptr<mpi_library>>(mpi_library::acquire());
    (*made)->leave_open();
    ignore_broken_pipes();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return made.release();
  }();
  return *known;
}

// All ranks of the world that live, whatever members they think are left: all of them see the same, or fail together.
std::optional<meeting> meet(const attempt& mine) {
  meeting now;
  if (MPIX_Comm_shrink(MPI_COMM_WORLD, &now.made) != MPI_SUCCESS) return std::nullopt;
  MPI_Comm_set_errhandler(now.made, MPI_ERRORS_RETURN);
  int size = 0;
  MPI_Comm_size(now.made, &size);
  now.all.resize(static_cast<std::size_t>(size));
  const presence here{mine.self, mine.generation};
  const int code = MPI_Allgather(&here, sizeof here, MPI_BYTE, now.all.data(), sizeof here, MPI_BYTE, now.made);
  int fine = code == MPI_SUCCESS ? 1 : 0;
  const int agreed = MPIX_Comm_agree(now.made, &fine);
  if (fine != 0 && agreed == MPI_SUCCESS) return now;
  library()->retire(now.made);
  return std::nullopt;
}

// With the ranks that were asked for; what it is given is used up.
MPI_Comm in_order(const meeting& those, const attempt& mine) {
  const bool is_so = std::equal(those.all.begin(), those.all.end(), mine.members.begin(), mine.members.end(),
                                [](const presence& one, std::uint64_t member) { return one.member == member; });
  MPI_Comm made = those.made;
  if (is_so) return made;
  MPI_Comm ordered = MPI_COMM_NULL;
  const auto place = std::find(mine.members.begin(), mine.members.end(), mine.self) - mine.members.begin();
  int fine = MPI_Comm_split(made, 0, static_cast<int>(place), &ordered) == MPI_SUCCESS ? 1 : 0;
  const bool agreed = MPIX_Comm_agree(made, &fine) == MPI_SUCCESS && fine != 0;
  library()->retire(made);
  if (agreed) return ordered;
  if (ordered != MPI_COMM_NULL) library()->retire(ordered);
  return MPI_COMM_NULL;
}

// The job is that of its first member. Where a rank of this world has died, that may be the first member.
void check_world(const meeting& now, const attempt& mine) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (now.all.size() < static_cast<std::size_t>(size) || now.has(mine.members.front())) return;
  throw configuration_error(
      "this process cannot join the job over transport mpi (another mpirun started it than the job's ranks, and over "
      "MPI a job only shrinks); use --transport shm or tcp, over which a job also grows");
}

// The communicator of the members, by rank; null when other ranks live than those, or one died meanwhile. Ranks come
// here one generation apart when a member died between two attempts: the others wait for the members that are behind.
MPI_Comm connect_those(const attempt& mine) {
  for (;;) {
    const auto now = meet(mine);
    if (!now) return MPI_COMM_NULL;
    const auto [first, last] = std::minmax_element(
        now->all.begin(), now->all.end(),
        [](const presence& one, const presence& other) { return one.generation < other.generation; });
    const bool all_here = first->generation == mine.generation && last->generation == mine.generation;
    if (all_here && now->all.size() == mine.members.size() &&
        std::all_of(mine.members.begin(), mine.members.end(),
                    [&now](std::uint64_t member) { return now->has(member); }))
      return in_order(*now, mine);
    library()->retire(now->made);
    if (all_here) check_world(*now, mine);
    const bool others_follow = first->generation < mine.generation && last->generation == mine.generation;
    if (!others_follow) return MPI_COMM_NULL;
  }
}

}  // namespace

bool can_connect_survivors() { return !library()->abandoned(); }

std::unique_ptr<transport> connect_survivors(const settings& configuration, std::span<const std::uint64_t> members,
                                             int self, std::uint64_t generation) {
  if (library()->abandoned())
    throw peer_failure({}, "MPI is not used any more (an earlier MPI_Comm_shrink did not return)");
  if (!mpi_survives_deaths()) {
    throw configuration_error(
        "an elastic job cannot use transport mpi here (this MPI ends the job when a rank dies); start it with mpirun "
        "--with-ft ulfm, or use --transport tcp");
  }
  const attempt mine{{members.begin(), members.end()}, members[static_cast<std::size_t>(self)], generation};
  const double limit = configuration.positive(setting::timeout);
  const auto made = library()->in_time([mine] { return connect_those(mine); }, deadline_after(seconds(limit)));
  if (!made) {
    const std::string text = "the survivors of generation " + std::to_string(generation) +
                             " were not connected within " + std::to_string(limit) +
                             " s (MPI_Comm_shrink waits for every rank that lives); MPI is not used any more";
    log(log_level::warning, text);
    throw timeout_error("connecting the survivors", {}, text);
  }
  if (*made == MPI_COMM_NULL)
    throw peer_failure({}, "the survivors were not connected (the ranks that live are not those of the generation)");
  const bool oversubscribed = members.size() > std::thread::hardware_concurrency();
  return std::make_unique<mpi_transport>(library(), *made, oversubscribed);
}

}}}  // namespace muster::v0::detail

#endif
