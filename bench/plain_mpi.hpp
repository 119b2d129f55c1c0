// The collectives of MPI itself under the protocol, in the process of muster's benchmark and in the peers' processes.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include "protocol.hpp"

namespace bench {

/// Runs one collective over MPI_COMM_WORLD, in place, float32, sum, root 0.
inline void call_mpi(op operation, int rank, std::span<float> data) {
  const int count = static_cast<int>(data.size());
  switch (called(operation)) {
    default:
      MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case op::broadcast:
      MPI_Bcast(data.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    case op::reduce:
      MPI_Reduce(rank == 0 ? MPI_IN_PLACE : data.data(), rank == 0 ? data.data() : nullptr, count, MPI_FLOAT, MPI_SUM,
                 0, MPI_COMM_WORLD);
      break;
  }
}

/// Returns the seconds for each of `count.times` calls, or the mean of consecutive calls; equal at every rank.
[[nodiscard]] inline std::vector<double> time_mpi(op operation, std::span<float> data, repeats count) {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check_result(operation, rank, ranks, data, [&](std::span<float> all) { call_mpi(operation, rank, all); });
  auto stamps = call_stamps(
      operation, data, count, [] { MPI_Barrier(MPI_COMM_WORLD); }, [&] { call_mpi(operation, rank, data); });
  MPI_Allreduce(MPI_IN_PLACE, stamps.data(), static_cast<int>(stamps.size()), MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return seconds_of(stamps);
}

/// Returns this MPI's name on one line: "Open MPI v4.1.4".
[[nodiscard]] inline std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string all(text, static_cast<std::size_t>(length));
  std::replace(all.begin(), all.end(), '\t', ' ');
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace bench
