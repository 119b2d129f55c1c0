// The contenders of bench/collectives, and the memory they share.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "protocol.hpp"

namespace bench {

/// The memory of one size, made once and used by all: no contender has luckier pages than another.
class workspace {
 public:
  explicit workspace(muster::context& context) : context_(&context) {}

  /// Drops what there is and makes room for `bytes` on each rank of this process.
  void resize(std::size_t bytes);

  [[nodiscard]] std::span<float> plain() { return of_threads_.front(); }
  /// Of a rank that is a thread.
  [[nodiscard]] std::span<float> plain(int rank) { return of_threads_.at(static_cast<std::size_t>(rank)); }
  /// The context's own; empty unless it is over shared memory.
  [[nodiscard]] std::span<float> registered() { return registered_.span(); }

 private:
  muster::context* context_;
  std::vector<std::vector<float>> of_threads_;
  muster::buffer<float> registered_;
};

/// One way to do one collective.
struct contender {
  op what;
  std::string name;
  int ranks;
  /// Called at every process alike; gives the seconds of each call, of its slowest rank, at rank 0.
  std::function<std::vector<double>(workspace& memory, repeats count)> measure;
  /// Takes no part in what is larger.
  std::size_t up_to = std::numeric_limits<std::size_t>::max();
};

/// `<op>/<name>/<ranks>/<bytes>`.
[[nodiscard]] inline std::string row_name(const contender& c, std::size_t bytes) {
  return std::string(to_string(c.what)) + "/" + c.name + "/" + std::to_string(c.ranks) + "/" + std::to_string(bytes);
}

/// muster's own: over shared memory where the context is, ranks as threads, and over `over_mpi` unless that is null.
/// An allreduce of 4 bytes also at the transport itself (muster_shm_bare), to show what deadlines and checks cost.
/// With `algorithms` also each algorithm by name, beside what the library chooses.
[[nodiscard]] std::vector<contender> muster_contenders(op what, muster::context& context, muster::group* over_mpi,
                                                       bool algorithms);

}  // namespace bench
