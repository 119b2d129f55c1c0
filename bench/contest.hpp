// All contenders of bench/collectives in this process, and what they need to stay alive.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "contender.hpp"

namespace bench {

/// MPI from the start of main to its end, where a launcher speaks it: plain MPI takes part whatever the context is
/// over.
class mpi_session {
 public:
  mpi_session();
  /// After a failure that not all ranks saw alike MPI may wait for ever: then it is left as it is.
  void end(int status) const;
  [[nodiscard]] bool there() const noexcept { return there_; }

 private:
  bool there_ = false;
};

/// The contenders of each of `ops`. Collective over processes; lives no longer than the context.
class contest {
 public:
  contest(muster::context& context, const mpi_session& mpi, bool algorithms, std::span<const op> ops);

  [[nodiscard]] const std::vector<contender>& all() const noexcept { return all_; }
  /// What plain MPI is called in the rows: "openmpi".
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  /// "Open MPI v4.1.4"; empty where there is none.
  [[nodiscard]] const std::string& library() const noexcept { return library_; }

 private:
  std::unique_ptr<muster::group> over_mpi_;
  std::string library_;
  std::string peer_ = "mpi";
  std::vector<contender> all_;
};

}  // namespace bench
