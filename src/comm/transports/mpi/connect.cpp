// How MPI gets into a context.
#include <thread>

#include <muster/comm/context.hpp>
#include <muster/comm/transports/mpi/adopt.hpp>
#include <muster/core/error.hpp>

#include "transport.hpp"

namespace muster { inline namespace v0 {
namespace {

// More ranks on this host than cores: then waiting must not spin.
bool is_oversubscribed(MPI_Comm communicator) {
  MPI_Comm host = MPI_COMM_NULL;
  detail::check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
                    "MPI_Comm_split_type");
  int ranks_here = 1;
  MPI_Comm_size(host, &ranks_here);
  MPI_Comm_free(&host);
  return static_cast<unsigned>(ranks_here) > std::thread::hardware_concurrency();
}

std::unique_ptr<transport> transport_over(std::shared_ptr<detail::mpi_library> library, MPI_Comm communicator) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  detail::check_mpi(MPI_Comm_dup(communicator, &duplicate), "MPI_Comm_dup");
  const bool oversubscribed = is_oversubscribed(duplicate);
  return std::make_unique<detail::mpi_transport>(std::move(library), duplicate, oversubscribed);
}

std::unique_ptr<transport> connect_world(const settings&, const launch_env&) {
  auto library = detail::mpi_library::acquire();
  return transport_over(std::move(library), MPI_COMM_WORLD);
}

}  // namespace

std::unique_ptr<transport> adopt_mpi(MPI_Comm communicator) {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised == 0) {
    throw configuration_error(
        "a communicator was given to muster before MPI_Init (MPI is not initialised); initialise it first");
  }
  if (finalised == 0 && communicator == MPI_COMM_NULL) {
    throw configuration_error(
        "MPI_COMM_NULL was given to muster (this rank is not in that communicator); call on its members only");
  }
  return transport_over(detail::mpi_library::acquire(), communicator);
}

namespace detail {

bool link_mpi() noexcept {
  static const bool done = [] {
    process_transport made{"mpi", &connect_world, [](double) { return mpi_abilities; }};
#ifdef MUSTER_HAVE_ULFM
    made.connect_survivors = &connect_survivors;
    made.can_connect_survivors = &can_connect_survivors;
#endif
    return register_process_transport(made);
  }();
  return done;
}

}  // namespace detail
}}  // namespace muster::v0
