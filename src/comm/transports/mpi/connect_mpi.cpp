// Connects the mpi transport of a context.
#include <thread>

#include <muster/comm/context.hpp>
#include <muster/comm/transports/mpi/adopt.hpp>
#include <muster/core/error.hpp>
#include <muster/core/plugin.hpp>

#include "mpi_transport.hpp"

namespace muster { inline namespace v0 {
namespace {

// Returns true if this host has more ranks than cores: a waiting rank must then not spin.
bool is_oversubscribed(MPI_Comm communicator) {
  MPI_Comm host = MPI_COMM_NULL;
  detail::check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
                    "MPI_Comm_split_type");
  int ranks_on_host = 1;
  MPI_Comm_size(host, &ranks_on_host);
  MPI_Comm_free(&host);
  return static_cast<unsigned>(ranks_on_host) > std::thread::hardware_concurrency();
}

std::unique_ptr<transport> transport_over(std::shared_ptr<detail::mpi_library> library, MPI_Comm communicator) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  // A duplicate has the handler of errors of the program, and MPI_Comm_dup would also copy the program's assertions,
  // such as that messages may overtake each other.
  detail::check_mpi(MPI_Comm_dup_with_info(communicator, MPI_INFO_NULL, &duplicate), "MPI_Comm_dup_with_info");
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
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
  auto library = detail::mpi_library::acquire();
  int has_two_groups = 0;
  MPI_Comm_test_inter(communicator, &has_two_groups);
  if (has_two_groups != 0) {
    throw configuration_error(
        "an intercommunicator was given to muster (it has two groups of ranks); merge them by MPI_Intercomm_merge");
  }
  return transport_over(std::move(library), communicator);
}

namespace detail {

extern const plugin mpi_plugin;
[[gnu::init_priority(101)]] const plugin mpi_plugin("mpi", [] {
  process_transport transport_entry{"mpi", &connect_world, [](double) { return mpi_abilities; }};
#ifdef MUSTER_HAVE_ULFM
  transport_entry.connect_survivors = &connect_survivors;
  transport_entry.can_connect_survivors = &can_connect_survivors;
#endif
  register_process_transport(transport_entry);
});

}  // namespace detail
}}  // namespace muster::v0
