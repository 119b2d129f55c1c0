// All contenders of bench/collectives in this process, and the objects whose lifetime they require.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "contender.hpp"

namespace bench {

/// A session of MPI from the start of main to its end, under a launcher of MPI. Plain MPI takes part whatever transport
/// the context uses.
class mpi_session {
 public:
  mpi_session();
  /// Finalizes MPI, except after a failure that not all ranks detected: then MPI_Finalize might wait for ever.
  void end(int status) const;
  [[nodiscard]] bool there() const noexcept { return there_; }

 private:
  bool there_ = false;
};

/// The contenders for `ops`. Construction is collective over processes. Must not outlive the context.
class contest {
 public:
  contest(muster::context& context, const mpi_session& mpi, bool algorithms, std::span<const op> ops);

  [[nodiscard]] const std::vector<contender>& all() const noexcept { return all_; }
  /// Returns plain MPI's name in the rows: "openmpi".
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  /// Returns a text such as "Open MPI v4.1.4"; empty without MPI.
  [[nodiscard]] const std::string& library() const noexcept { return library_; }

 private:
  std::unique_ptr<muster::group> over_mpi_;
  std::string library_;
  std::string peer_ = "mpi";
  std::vector<contender> all_;
};

}  // namespace bench
