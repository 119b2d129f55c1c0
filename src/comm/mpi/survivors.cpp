// The ranks that are left of an MPI job and those that join it, connected anew: for elastic sessions.
#include "survivors.hpp"

#ifdef MUSTER_HAVE_ULFM

#include <mpi.h>

#include <mpi-ext.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <future>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "entrance.hpp"
#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

// A call of MPI that waits for what may never come is left behind after so long, once it is known not to come.
constexpr seconds at_a_closed_door{2.0};
constexpr std::chrono::milliseconds between_looks{1};

struct attempt {
  std::string job;
  std::vector<std::uint64_t> members;
  std::uint64_t self = 0;
  std::uint64_t generation = 0;
  std::function<bool()> given_up;
  clock::time_point until;  // for those that join to come
};

// What one of those that are in says when they meet.
struct presence {
  std::uint64_t who;
  std::uint64_t generation;
};

struct meeting {
  MPI_Comm made = MPI_COMM_NULL;
  std::vector<presence> all;  // by rank there
  [[nodiscard]] bool has(std::uint64_t who) const {
    return std::any_of(all.begin(), all.end(), [who](const presence& one) { return one.who == who; });
  }
};

struct result {
  MPI_Comm made = MPI_COMM_NULL;  // null when others are left than those, or somebody died meanwhile
  std::optional<int> absent{};    // the rank of one that was to join and did not come
  bool is_stuck = false;          // one that was to join waits in MPI for ever
  bool is_apart = false;          // this process and its own world are those that are to join
};

// MPI, as far as this process is connected.
struct known_world {
  std::shared_ptr<mpi_library> library;  // kept, and never finalised: that would wait for ranks that have left
  MPI_Comm all = MPI_COMM_NULL;          // that ever were connected with this one, dead ones too; null: nobody yet
  std::future<std::optional<MPI_Comm>> entering;
  std::atomic<bool> at_the_door{false};
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

bool world_began = false;  // of the rank's thread

known_world& world() {
  world_began = true;
  static auto* const known = [] {  // threads that were left behind may outlive all that is destroyed
    auto made = std::make_unique<known_world>();
    made->library = mpi_library::acquire();
    made->library->leave_open();
    ignore_broken_pipes();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    return made.release();
  }();
  return *known;
}

// Of all that are connected and live, whoever they think is left: all of them see the same, or fail together.
std::optional<meeting> meet(const attempt& mine) {
  meeting now;
  if (MPIX_Comm_shrink(world().all, &now.made) != MPI_SUCCESS) return std::nullopt;
  MPI_Comm_set_errhandler(now.made, MPI_ERRORS_RETURN);
  int size = 0;
  MPI_Comm_size(now.made, &size);
  now.all.resize(static_cast<std::size_t>(size));
  const presence here{mine.self, mine.generation};
  const int code = MPI_Allgather(&here, sizeof here, MPI_BYTE, now.all.data(), sizeof here, MPI_BYTE, now.made);
  int fine = code == MPI_SUCCESS ? 1 : 0;
  const int agreed = MPIX_Comm_agree(now.made, &fine);
  if (fine != 0 && agreed == MPI_SUCCESS) return now;
  world().library->retire(now.made);
  return std::nullopt;
}

bool somebody_died(const meeting& those) {
  int before = 0;
  MPI_Comm_size(world().all, &before);
  return those.all.size() < static_cast<std::size_t>(before);
}

// With the ranks that were asked for; what it is given is used up.
MPI_Comm in_order(const meeting& those, const attempt& mine) {
  const bool is_so = std::equal(those.all.begin(), those.all.end(), mine.members.begin(), mine.members.end(),
                                [](const presence& one, std::uint64_t member) { return one.who == member; });
  MPI_Comm made = those.made;
  if (is_so) return made;
  MPI_Comm ordered = MPI_COMM_NULL;
  const auto place = std::find(mine.members.begin(), mine.members.end(), mine.self) - mine.members.begin();
  int fine = MPI_Comm_split(made, 0, static_cast<int>(place), &ordered) == MPI_SUCCESS ? 1 : 0;
  const bool agreed = MPIX_Comm_agree(made, &fine) == MPI_SUCCESS && fine != 0;
  world().library->retire(made);
  if (agreed) return ordered;
  if (ordered != MPI_COMM_NULL) world().library->retire(ordered);
  return MPI_COMM_NULL;
}

std::string name_of(const attempt& mine, std::uint64_t who) { return "muster." + mine.job + "." + std::to_string(who); }

// From one meeting to the next one more is in.
result connect_those(const attempt& mine) {
  for (;;) {
    auto now = meet(mine);
    if (!now) return {};
    const auto [first, last] = std::minmax_element(
        now->all.begin(), now->all.end(),
        [](const presence& one, const presence& other) { return one.generation < other.generation; });
    const bool all_know = std::all_of(now->all.begin(), now->all.end(), [&mine](const presence& one) {
      return std::find(mine.members.begin(), mine.members.end(), one.who) != mine.members.end();
    });
    if (first->generation == mine.generation && last->generation == mine.generation && all_know) {
      const auto missing = std::find_if(mine.members.begin(), mine.members.end(),
                                        [&now](std::uint64_t member) { return !now->has(member); });
      if (missing == mine.members.end()) return {in_order(*now, mine)};
      if (missing == mine.members.begin()) {
        world().library->retire(now->made);
        if (somebody_died(*now)) return {};  // that one, for all that is known
        return {MPI_COMM_NULL, std::nullopt, false, true};
      }
      const auto taken =
          take_in(*world().library, now->made, name_of(mine, *missing), mine.given_up, mine.until, world().at_the_door);
      world().library->retire(now->made);
      if (taken.what == admission::outcome::absent)
        return {MPI_COMM_NULL, static_cast<int>(missing - mine.members.begin())};
      if (taken.what == admission::outcome::stuck) return {MPI_COMM_NULL, std::nullopt, true};
      if (taken.what != admission::outcome::in) return {};
      if (world().all != MPI_COMM_WORLD) world().library->retire(world().all);
      world().all = taken.all;
      continue;
    }
    const bool others_follow = first->generation < mine.generation && last->generation == mine.generation;
    world().library->retire(now->made);
    if (!others_follow) return {};
  }
}

// What blocks in MPI goes on in a thread of its own, which can be left behind: nothing in MPI ends a wait.
template <class F>
auto in_a_thread(F f) {
  std::packaged_task<decltype(f())()> task(std::move(f));
  auto later = task.get_future();
  std::thread(std::move(task)).detach();
  return later;
}

// Whether this process, which nobody is connected with yet, was started after the others: by itself, and the job is
// somebody else's.
bool is_newcomer(const regrouping& wanted) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size == 1 && wanted.self != 0;
}

void await_entrance(const attempt& mine) {
  auto& known = world();
  while (known.all == MPI_COMM_NULL) {
    // One that waits for an earlier attempt waits for this one as well.
    if (!known.entering.valid())
      known.entering = in_a_thread([name = name_of(mine, mine.self)] { return enter(*world().library, name); });
    while (known.entering.wait_for(between_looks) != std::future_status::ready) {
      if (mine.given_up()) throw peer_failure({}, "this process was not taken in yet (the others changed meanwhile)");
      if (clock::now() >= mine.until)
        throw timeout_error("joining over MPI", {}, "the others did not connect this process over MPI in time");
    }
    if (const auto came = known.entering.get()) known.all = *came;
  }
}

// What goes on in MPI stays behind, and MPI with it.
std::string give_up_mpi(const std::string& why) {
  world().library->abandon();
  const std::string text = why + "; the job goes on without MPI";
  log(log_level::warning, text);
  return text;
}

result await(std::future<result> meeting_of_all, const attempt& mine, double limit) {
  auto& known = world();
  const auto until = deadline_after(seconds(limit));
  std::optional<clock::time_point> closed_since;
  while (meeting_of_all.wait_for(between_looks) != std::future_status::ready) {
    const auto now = clock::now();
    if (!known.at_the_door || !mine.given_up())
      closed_since.reset();
    else if (!closed_since)
      closed_since = now;
    if (closed_since && now - *closed_since > at_a_closed_door) {
      throw peer_failure(
          {}, give_up_mpi("a process died while one was joining over MPI (MPI_Comm_connect waits for it, and "
                          "cannot be ended)"));
    }
    if (now >= until) {
      throw timeout_error(
          "connecting the survivors", {},
          give_up_mpi("the survivors of generation " + std::to_string(mine.generation) + " did not come together in " +
                      std::to_string(limit) + " s (MPI_Comm_shrink waits for all that live)"));
    }
  }
  return meeting_of_all.get();
}

void check_world(const regrouping& wanted) {
  auto& known = world();  // which begins MPI
  if (!mpi_survives_deaths()) {
    throw configuration_error(
        "an elastic job cannot use transport mpi here (this MPI does not go on when a rank dies); start it with mpirun "
        "--with-ft ulfm, or use --transport tcp");
  }
  if (known.library->abandoned())
    throw peer_failure({}, "an earlier attempt to connect the survivors over MPI is stuck");
  if (known.all == MPI_COMM_NULL && !is_newcomer(wanted)) known.all = MPI_COMM_WORLD;
}

}  // namespace

bool can_connect_survivors() noexcept { return !world_began || !world().library->abandoned(); }

std::unique_ptr<any_transport> connect_survivors(const settings& configuration, const regrouping& wanted) {
  check_world(wanted);
  const double limit = configuration.positive(setting::timeout);
  const attempt mine{wanted.job,
                     {wanted.members.begin(), wanted.members.end()},
                     wanted.members[static_cast<std::size_t>(wanted.self)],
                     wanted.generation,
                     wanted.given_up,
                     deadline_after(seconds(limit / 2))};
  await_entrance(mine);
  const auto made = await(in_a_thread([mine] { return connect_those(mine); }), mine, limit);
  if (made.is_apart) {
    throw configuration_error(
        "this process cannot join over transport mpi (it was started together with others, and those that join are "
        "connected one by one); start each of them by a prun of its own, with -n 1");
  }
  if (made.is_stuck)
    throw peer_failure({}, give_up_mpi("a process that was to join over MPI waits there for one that has died"));
  if (made.absent) {
    throw timeout_error("connecting the survivors", {*made.absent},
                        "rank " + std::to_string(*made.absent) + " of generation " + std::to_string(mine.generation) +
                            " did not come to be connected over MPI (mpirun starts the ranks of a job, and prun those "
                            "that join it)");
  }
  if (made.made == MPI_COMM_NULL)
    throw peer_failure({}, "the survivors were not connected (others are left than they thought)");
  const bool crowded = wanted.members.size() > std::thread::hardware_concurrency();
  return std::make_unique<any_transport>(std::make_unique<mpi_transport>(world().library, made.made, crowded));
}

}  // namespace muster::inline v0::detail

#endif
