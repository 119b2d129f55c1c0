// How a process that MPI's launcher started later gets into the world of those that were there before.
#pragma once

#ifdef MUSTER_HAVE_ULFM

#include <mpi.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include <muster/core/clock.hpp>

#include "library.hpp"

namespace muster::inline v0::detail {

/// What became of the attempt to take somebody in. Stuck: it waits in MPI for what an earlier attempt left undone.
struct admission {
  enum class outcome { in, given_up, absent, stuck, failed } what = outcome::failed;
  MPI_Comm all = MPI_COMM_NULL;  ///< where it is in: those that were, in their order, and the new one behind them
};

/// For one that joins: waits under that name until the others take it in, however long that is, and returns the
/// communicator of all. Nothing when that did not come about, to be tried again. Throws error when MPI has connected
/// some of them and not all: then this process is of no use any more.
[[nodiscard]] std::optional<MPI_Comm> enter(mpi_library& library, const std::string& name);

/// For those that are in, collective over `those`: waits until somebody waits under that name, and takes it in. All
/// that live get the same outcome. `at_the_door` is true while that may wait for one that has died, which nothing can
/// end: what Open MPI 5 connects by, it does not see deaths in.
[[nodiscard]] admission take_in(mpi_library& library, MPI_Comm those, const std::string& name,
                                const std::function<bool()>& given_up, clock::time_point until,
                                std::atomic<bool>& at_the_door);

}  // namespace muster::inline v0::detail

#endif
