// A solver of an MPI program trains a surrogate while it runs: heat in a plate, on a communicator of the solver's own.
// The conductivity grows with the temperature, and waves of heat run along the border. Rank r has a share of the rows
// in proportion to r + 1. solver/heat.cpp is the solver alone, and solver/surrogate.hpp the surrogate.
//
//   $ mpirun -n 3 12_solver
//   after 2400 steps the mean temperature is 0.5...
//   the surrogate errs by 0.9... of the change in its first predictions, and by 0... in its last
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include <mpi.h>

#include <muster/comm/transports/mpi/adopt.hpp>
#include "solver/surrogate.hpp"

constexpr int cells = 24;  // along a side
constexpr int steps = 2400;
constexpr double ratio = 0.04;                        // time step / cell width^2, stable up to a conductivity of 6
constexpr double wave = 0.1 * cells * cells / ratio;  // steps of a wave
constexpr double full_turn = 2 * 3.141592653589793;

// The rows of a rank. A row of the neighbour, or of the border, is on each side.
struct plate {
  plate(int rank, int ranks)
      : first(cells * rank * (rank + 1) / (ranks * (ranks + 1))),
        rows(cells * (rank + 1) * (rank + 2) / (ranks * (ranks + 1)) - first),
        now(std::size_t(rows + 2) * (cells + 2), 0.5),
        next(now) {}
  [[nodiscard]] double* row(int r) { return now.data() + r * (cells + 2); }

  int first, rows;  // number of the first row in the whole plate, and of the rows
  std::vector<double> now, next;
};

void heat_border(plate& part, int step) {
  const auto heat = [&](int row, int column) {
    const int along = part.first + row + 2 * column;
    part.row(row)[column] = 0.5 + 0.5 * std::sin(full_turn * (step / wave + along / double(cells)));
  };
  for (int row = 0; row <= part.rows + 1; ++row) {
    heat(row, 0);
    heat(row, cells + 1);
  }
  for (int column = 0; column <= cells + 1; ++column) {
    if (part.first == 0) heat(0, column);
    if (part.first + part.rows == cells) heat(part.rows + 1, column);
  }
}

void exchange_rows(plate& part, int rank, int size, MPI_Comm ranks) {
  const int above = rank > 0 ? rank - 1 : MPI_PROC_NULL;
  const int below = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
  const int count = cells + 2;
  MPI_Sendrecv(part.row(1), count, MPI_DOUBLE, above, 0, part.row(part.rows + 1), count, MPI_DOUBLE, below, 0, ranks,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(part.row(part.rows), count, MPI_DOUBLE, below, 0, part.row(0), count, MPI_DOUBLE, above, 0, ranks,
               MPI_STATUS_IGNORE);
}

void conduct(plate& part) {
  const auto flow = [](double from, double to) { return (1 + 2 * (from + to)) * (from - to); };
  for (int row = 1; row <= part.rows; ++row) {
    const double* const at = part.row(row);
    double* const out = part.next.data() + row * (cells + 2);
    for (int c = 1; c <= cells; ++c)
      out[c] = at[c] + ratio * (flow(at[c - 1], at[c]) + flow(at[c + 1], at[c]) + flow(at[c - cells - 2], at[c]) +
                                flow(at[c + cells + 2], at[c]));
  }
  std::swap(part.now, part.next);
}

void solve(MPI_Comm ranks, muster::context& context) {
  int rank = 0, size = 0;
  MPI_Comm_rank(ranks, &rank);
  MPI_Comm_size(ranks, &size);
  plate part(rank, size);
  surrogate model(context, cells);
  for (int step = 0; step < steps; ++step) {
    heat_border(part, step);
    exchange_rows(part, rank, size, ranks);
    model.follow(step, part.first, part.now);
    conduct(part);
  }
  double sum = 0;
  for (int row = 1; row <= part.rows; ++row)
    for (int column = 1; column <= cells; ++column) sum += part.row(row)[column];
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, ranks);
  if (rank == 0) std::printf("after %d steps the mean temperature is %.6f\n", steps, sum / (cells * cells));
  model.report();
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm solver = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &solver);  // the opposite order of the ranks
  const int status = muster::run_main(argc, argv, [&](muster::context& context, auto&) { solve(solver, context); },
                                      {.connect = [&] { return muster::adopt_mpi(solver); }});
  MPI_Comm_free(&solver);
  MPI_Finalize();
  return status;
}
