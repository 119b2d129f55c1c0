#include "contest.hpp"

#include <iterator>
#include <utility>

#ifdef MUSTER_HAS_MPI
#include <muster/comm/transports/mpi/adopt.hpp>

#include "plain_mpi.hpp"
#endif

namespace bench {

#ifdef MUSTER_HAS_MPI

mpi_session::mpi_session() {
  try {
    const auto launched = muster::detect_launch();
    if (launched.size < 2 || !launched.speaks_mpi()) return;
  } catch (const muster::configuration_error&) {
    return;  // The context will report this.
  }
  // Requests the same level as muster's context. Open MPI 4.1 is slower at small calls with any level above
  // MPI_THREAD_SINGLE; the programs in peers/ measure it with MPI_THREAD_SINGLE.
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  there_ = true;
}

void mpi_session::end(int status) const {
  if (there_ && (status == 0 || status == static_cast<int>(muster::error_kind::configuration))) MPI_Finalize();
}

contest::contest(muster::context& context, const mpi_session& mpi, bool algorithms, std::span<const op> ops) {
  if (mpi.there()) {
    over_mpi_ = std::make_unique<muster::group>(muster::adopt_mpi(MPI_COMM_WORLD), context.world().settings());
    library_ = mpi_library();
    if (library_.starts_with("Open MPI")) peer_ = "openmpi";
    if (library_.starts_with("MPICH")) peer_ = "mpich";
  }
  for (const auto operation : ops) {
    auto some = muster_contenders(operation, context, over_mpi_.get(), algorithms);
    std::move(some.begin(), some.end(), std::back_inserter(all_));
    if (!over_mpi_) continue;
    all_.push_back({operation, peer_, over_mpi_->size(), [operation](workspace& memory, repeats count) {
                      return time_mpi(operation, memory.plain(), count);
                    }});
  }
}

#else

mpi_session::mpi_session() = default;
void mpi_session::end(int) const {}

contest::contest(muster::context& context, const mpi_session&, bool algorithms, std::span<const op> ops) {
  for (const auto operation : ops) {
    auto some = muster_contenders(operation, context, nullptr, algorithms);
    std::move(some.begin(), some.end(), std::back_inserter(all_));
  }
}

#endif

}  // namespace bench
