// muster-info check: the faults of this machine, in the order in which to mend them.
#pragma once

#include <string>
#include <vector>

/// The result of one check.
struct machine_check {
  std::string name;
  std::string found;
  std::string mend;  // the line that mends it; empty if nothing is to be mended
};

/// The words of `muster-info check`.
struct check_options {
  bool as_json = false;
  int listen = -1;    // --listen: the port at which `reach` of another host connects; 0 is any
  std::string reach;  // --reach: HOST:PORT of a host where --listen waits
};

/// Prints every check; those of MPI where `mpi_library`, its version, is not empty. Returns the exit status: 0 if
/// nothing is to be mended, otherwise `check_to_mend`.
inline constexpr int check_to_mend = 1;
int check_machine(const check_options& chosen, const std::string& mpi_library);

/// Tries connections with a second host in both directions, which finds a firewall. One host listens and waits for the
/// other host for a minute.
std::vector<machine_check> check_listening(int port);
std::vector<machine_check> check_reaching(const std::string& host_and_port);
