// The contenders of bench/collectives, and the memory that they share.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "protocol.hpp"

namespace bench {

/// The memory for one size, allocated once and used by all contenders, so that no contender has more favourable pages.
class workspace {
 public:
  explicit workspace(muster::context& context) : context_(&context) {}

  /// Releases the present memory and allocates `bytes` for each rank of this process; on the first process for every
  /// rank, because ranks are also measured as threads.
  void resize(std::size_t bytes);

  [[nodiscard]] std::span<float> plain() { return of_threads_.front(); }
  /// Returns the memory of a rank that is a thread.
  [[nodiscard]] std::span<float> plain(int rank) { return of_threads_.at(static_cast<std::size_t>(rank)); }
  /// Returns the context's registered memory; empty unless the context uses shared memory.
  [[nodiscard]] std::span<float> registered() { return registered_.span(); }

 private:
  muster::context* context_;
  std::vector<std::vector<float>> of_threads_;
  muster::buffer<float> registered_;
};

/// An implementation of a collective.
struct contender {
  op operation;
  std::string name;
  int ranks;
  /// Called at every process alike. Returns at rank 0 each call's seconds at its slowest rank.
  std::function<std::vector<double>(workspace& memory, repeats count)> measure;
  /// Largest size in bytes at which the contender takes part.
  std::size_t up_to = std::numeric_limits<std::size_t>::max();
};

/// Returns `<op>/<name>/<ranks>/<bytes>`.
[[nodiscard]] inline std::string row_name(const contender& c, std::size_t bytes) {
  return std::string(to_string(c.operation)) + "/" + c.name + "/" + std::to_string(c.ranks) + "/" +
         std::to_string(bytes);
}

/// Returns muster's contenders: over shared memory if the context uses it, with ranks as threads, and over `over_mpi`
/// unless null. An allreduce of 4 bytes is also measured at the transport itself (muster_shm_bare), to show the cost of
/// deadlines and checks. With `by_name` each algorithm is also measured by name, beside the library's choice.
[[nodiscard]] std::vector<contender> muster_contenders(op operation, muster::context& context, muster::group* over_mpi,
                                                       bool by_name);

}  // namespace bench
